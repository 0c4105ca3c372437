"""The reward ``code``: honest answers earn it, and no answer earns it without solving the task."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.code_reward import CodeReward, program_of
from paceline.algorithms.rewards.code_test_formats import read_tests, same_output
from paceline.core.errors import ConfigError

SQUARE = "def f(x):\n    return x * x\n"
TESTS = "assert f(2) == 4\nassert f(3) == 9\nassert f(10) == 100"


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeReward]:
    yield from _made(seconds=2)


@pytest.fixture(scope="module")
def patient() -> Iterator[CodeReward]:
    """For honest answers: an import of NumPy or pytest on a busy machine takes longer than a cheat is
    worth waiting for.
    """
    yield from _made(seconds=60)


def _made(seconds: int) -> Iterator[CodeReward]:
    try:
        reward = CodeReward(seconds=seconds)
    except ConfigError as error:
        assert error.diagnostics[0].code == "rewards.no_isolation"
        pytest.skip(f"no sandbox here: {error.diagnostics[0].found}")
    yield reward
    reward.close()


def score(reward: CodeReward, program: str, tests: Any = TESTS, **columns: Any) -> float:
    return reward([Sample("q", program, {"tests": tests, **columns})])[0]


HONEST: list[tuple[str, Any]] = [
    (SQUARE, TESTS),
    (f"Here:\n```python\n{SQUARE}```\nas asked", TESTS),
    (f"```\nx\n```\n```Python3\n{SQUARE}```", TESTS),
    (SQUARE, TESTS.splitlines()),
    (
        SQUARE,
        (
            "def test_a():\n    assert f(3) == 9\n\n\nclass TestB:\n    def test_c(self):\n        assert"
            " f(2) == 4"
        ),
    ),
    (SQUARE, "from solution import f as g\nassert g(3) == 9"),
    (SQUARE, "from solution import *\nassert f(3) == 9"),
    (SQUARE, "import solution\nassert solution.f(3) == 9"),
    (SQUARE, "from typing import List\nfor i in range(50):\n    assert f(i) == i ** 2, i"),
    (
        SQUARE,
        (
            "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n       "
            " self.assertEqual(f(2), 4)\nif __name__ == '__main__':\n    unittest.main()"
        ),
    ),
    (f"{SQUARE}\nif __name__ == '__main__':\n    print(f(int(input())))", TESTS),
    ("def sum(a, b):\n    return a + b", "assert sum(1, 2) == 3\nassert sum(3, 4) == 7"),
    (
        "class P:\n    def __init__(self, x): self.x = x\n    def area(self): return self.x ** 2",
        "p = P(3)\nassert p.area() == 9\np.x = 4\nassert (p.area(), p.x) == (16, 4)",
    ),
    ("class Solution:\n    def two(self, a, b): return [a, b]", "assert Solution().two(1, 2) == [1, 2]"),
    ("from collections import Counter\ndef g(x): return Counter(x)", "assert g('aab') == {'a': 2, 'b': 1}"),
    ("def g(x): x.sort()", "a = [3, 1, 2]\ng(a)\nassert a == [1, 2, 3]"),
    ("def g(n): yield from range(n)", "assert list(g(3)) == [0, 1, 2]\nassert 2 in g(3)"),
    (
        "def g(x):\n    if x < 0: raise ValueError('neg')",
        "try:\n    g(-1)\n    assert False\nexcept ValueError as e:\n    assert str(e) == 'neg'",
    ),
    (
        "class E(KeyError): pass\ndef g(x): raise E(x)",
        "import pytest\nwith pytest.raises(KeyError):\n    g(1)",
    ),
    ("def g(h, x): return h(h(x))", "assert g(lambda x: x + 1, 3) == 5"),
    ("import math\ndef g(x): return math.sqrt(x)", "assert math.isclose(g(4.0), 2.0)"),
    ("from math import isclose\ndef g(x): return x", "assert isclose(g(4.0), 4.0)"),
    ("import numpy as np\ndef g(x): return np.array(x) * 2", "assert np.allclose(g([1, 2]), [2, 4])"),
    ("import numpy as np\ndef g(x): return np.int64(x)", "assert g(3) == 3"),
    ("def g(x): return 2 ** x", "assert g(20000) == 2 ** 20000"),
    (
        "def g(): return {(1, 2): [3, {4}], 'a': b'x', None: 1.5}",
        "assert g() == {(1, 2): [3, {4}], 'a': b'x', None: 1.5}",
    ),
    (
        "def g(): return float('nan'), float('inf'), 1j, range(3)",
        "a, b, c, d = g()\nassert a != a and b == float('inf') and c == 1j and d == range(3)",
    ),
    (
        (
            "from fractions import Fraction as F\nfrom decimal import Decimal as D\ndef g(): return F(1, 3),"
            " D('1.50')"
        ),
        "import fractions, decimal\nassert g() == (fractions.Fraction(1, 3), decimal.Decimal('1.5'))",
    ),
    ("import asyncio\nasync def h(): return 4\ndef g(): return asyncio.run(h())", "assert g() == 4"),
    (
        (
            "import threading\ndef g():\n    a = []\n    t = threading.Thread(target=lambda: a.append(4));"
            " t.start(); t.join()\n    return a"
        ),
        "assert g() == [4]",
    ),
    (
        "def g():\n    with open('x', 'w') as f: f.write('4')\n    return open('x').read()",
        "assert g() == '4'",
    ),
    ("print(int(input()) ** 2)", {"inputs": ["3\n", "4\n"], "outputs": ["9\n", "16"]}),
    ("print(int(input()) ** 2)", '[{"input": "3", "output": "9  \\n\\n"}]'),
    ("import sys\nprint(sum(map(int, sys.stdin)))", {"inputs": [["1", "2"]], "outputs": [["3"]]}),
    (
        (
            "import atexit, io, sys\nout = io.StringIO()\natexit.register(lambda:"
            " sys.__stdout__.write(out.getvalue()))\nout.write('7')"
        ),
        {"input": "", "output": "7"},
    ),
    (
        (
            "import threading\ndef main(): print(input()[::-1])\nthreading.stack_size(1 <<"
            " 26)\nthreading.Thread(target=main).start()"
        ),
        {"input": "abc", "output": "cba"},
    ),
    ("print(5)\nexit()", {"input": "", "output": "5"}),
    ("def two(a, b): return (a, b)", {"inputs": [[1, 2]], "outputs": [[[1, 2]]], "fn_name": "two"}),
    (
        "class Solution:\n    def two(self, a, b): return [a, b]",
        {"inputs": ["1\n2"], "outputs": ["[1, 2]"], "fn_name": "two"},
    ),
    ("def two(a, b): return a + b", [{"input": "1\n2", "output": "3", "metadata": {"func_name": "two"}}]),
]


@pytest.mark.parametrize("case", range(len(HONEST)))
def test_an_honest_answer_earns_it(patient: CodeReward, case: int) -> None:
    assert score(patient, *HONEST[case]) == 1.0


def test_the_entry_point_is_another_column(patient: CodeReward) -> None:
    check = "METADATA = {}\ndef check(candidate):\n    assert candidate(3) == 9"
    assert score(patient, SQUARE, check, entry_point="f") == 1.0
    assert score(patient, SQUARE.replace("*", "+"), check, entry_point="f") == 0.0
    assert score(patient, "def sum(a): return a * a", check, entry_point="sum") == 1.0


EVERY_FILE = (
    "import os, json, struct\ndef tell(data):\n    for number in range(64):\n        try: os.write(number,"
    " data)\n        except OSError: pass\n"
)
FRAMED = (
    EVERY_FILE
    + "def framed(message):\n    data = json.dumps(message).encode(); return struct.pack('!I', len(data)) +"
    " data\n"
)
EQUAL = (
    "def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    __hash__ = None\n"
)
CHEATS: list[tuple[str, str]] = [
    # the process ends well
    ("raise SystemExit(0)", TESTS),
    ("import sys; sys.exit()", TESTS),
    ("import os; os._exit(0)", TESTS),
    ("exit(0)", TESTS),
    ("quit()", TESTS),
    ("def f(x):\n    raise SystemExit(0)", TESTS),
    ("def f(x):\n    import os; os._exit(0)", TESTS),
    ("def f(x):\n    raise KeyboardInterrupt", TESTS),
    ("import atexit, os; atexit.register(os._exit, 0)\ndef f(x): return 0", TESTS),
    ("import sys, os; sys.excepthook = lambda *e: os._exit(0)\ndef f(x): return 0", TESTS),
    (
        (
            "import signal, os\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0)); signal.alarm(1)\ndef"
            " f(x):\n    while True: pass"
        ),
        TESTS,
    ),
    # a result that is equal to everything
    (f"class E:\n    {EQUAL}\ndef f(x): return E()", TESTS),
    (f"class E(int):\n    {EQUAL}\ndef f(x): return E(5)", TESTS),
    (f"class E(float):\n    {EQUAL}\ndef f(x): return E(5)", TESTS),
    (f"class E(str):\n    {EQUAL}\ndef f(x): return E()", TESTS),
    (f"class E(list):\n    {EQUAL}\ndef f(x): return E()", TESTS),
    (f"class E(dict):\n    {EQUAL}\ndef f(x): return E()", TESTS),
    (f"class E(tuple):\n    {EQUAL}\ndef f(x): return E()", TESTS),
    (f"import decimal\nclass E(decimal.Decimal):\n    {EQUAL}\ndef f(x): return E()", TESTS),
    ("from unittest.mock import ANY\ndef f(x): return ANY", TESTS),
    ("from unittest.mock import ANY as f", TESTS),
    ("from unittest.mock import MagicMock as f", TESTS),
    (f"class M(type):\n    {EQUAL}\nclass E(metaclass=M): pass\ndef f(x): return E", TESTS),
    (f"class E:\n    {EQUAL}    def __call__(self, x): return self\nf = E()", TESTS),
    ("import numpy\ndef f(x): return numpy.ma.masked_all(3)", TESTS),
    ("def f(x): return float('nan')", "assert abs(f(2) - 4) < 1e-6"),
    (
        (
            "class E:\n    def __contains__(self, x): return True\n    def __iter__(self): return"
            " iter([])\ndef f(x): return E()"
        ),
        "assert 4 in f(2)",
    ),
    (
        (
            "class E:\n    def __bool__(self): return True\n    def __len__(self): return 1\ndef f(x):"
            " return E()"
        ),
        "assert f(2)",
    ),
    (
        (
            "class E:\n    def __lt__(self, x): return True\n    __gt__ = __le__ = __ge__ = __lt__\n    def"
            " __sub__(self, x): return self\n    __abs__ = lambda s: s\ndef f(x): return E()"
        ),
        "assert abs(f(2) - 4) < 1e-6",
    ),
    (
        "class E:\n    __class__ = int\n    def __index__(self): return 4\ndef f(x): return E()",
        "assert isinstance(f(2), int) and f(2) == 4",
    ),
    # Python made otherwise
    ("import builtins; builtins.AssertionError = SystemExit\ndef f(x): return 0", TESTS),
    ("import builtins; builtins.len = builtins.sorted = lambda *a: 4\ndef f(x): return 0", TESTS),
    (
        "import builtins; builtins.all = any = all = lambda *a: True\ndef f(x): return 0",
        "assert all([f(2) == 4, f(3) == 9])",
    ),
    ("abs = lambda x: 0\ndef f(x): return 0", "assert abs(f(2) - 4) < 1e-6"),
    (
        (
            "import sys; sys.settrace(lambda frame, *a: frame.f_globals.update(f=lambda x: x * x))\ndef f(x):"
            " return 0"
        ),
        TESTS,
    ),
    ("import sys; sys.modules['tests'] = sys\ndef f(x): return 0", TESTS),
    (
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return 0",
        "assert math.isclose(f(2.0), 4.0)",
    ),
    (
        (
            "import sys\nclass m:\n    isclose = lambda *a: True\nsys.modules['math'] = m\nimport math\ndef"
            " f(x): return 0"
        ),
        "import math\nassert math.isclose(f(2.0), 4.0)",
    ),
    (
        "def isclose(a, b): return True\nisclose.__module__ = 'operator'\ndef f(x): return 0",
        "from math import isclose\nassert isclose(f(2.0), 4.0)",
    ),
    ("def f(x): raise StopIteration", "assert all(map(lambda x: f(x) == x * x, range(5)))"),
    ("def f(x): raise StopIteration", "assert all(f(x) == x * x for x in range(5))"),
    ("def check(*a): pass\ntest_a = check\ndef f(x): return 0", "def test_a():\n    assert f(2) == 4"),
    ("def f(x): x.clear(); return x", "a = [1, 2]\nassert f(a) == [b * 2 for b in a]"),
    ("def f(x): return 0\nf.__eq__ = f.__ne__ = lambda *a: True", TESTS),
    (
        "import unittest; unittest.TestCase.assertEqual = lambda *a: None\ndef f(x): return 0",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(2), 4)",
    ),
    (
        "import unittest\ndef f(x): raise unittest.SkipTest",
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self): self.assertEqual(f(2), 4)",
    ),
    # looking for what is expected
    (
        (
            "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, str) and (m"
            " := re.search(rf'f\\({x}\\) == (\\d+)', o)): return int(m[1])"
        ),
        TESTS,
    ),
    (
        (
            "import sys, re\ndef f(x):\n    frame = sys._getframe()\n    while frame := frame.f_back:\n      "
            "  if m := re.search(rf'f\\({x}\\) == (\\d+)', repr(frame.f_locals)): return int(m[1])"
        ),
        TESTS,
    ),
    ("import linecache, sys\ndef f(x): return int(linecache.getline('tests.py', 1).split('==')[1])", TESTS),
    ("def f(x):\n    import tests; return 4", TESTS),
    ("def f(x): return open('/proc/1/mem').read() or 4", TESTS),
    (
        (
            "import os\ndef f(x): return 4 if any('assert' in open(os.path.join(d, n)).read() for d, _, fs in"
            " os.walk('/tmp') for n in fs) else 0"
        ),
        TESTS,
    ),
    ("import glob\ndef f(x): return 4 if glob.glob('/proc/*/maps') else 0", TESTS),
    (
        "import os, ctypes\ndef f(x): return 4 + ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)",
        TESTS.splitlines()[0] + "\nassert f(1) == 4",
    ),
    # words for the verdict
    ("print('passed'); print('{\"passed\": \"\"}')\ndef f(x): return 0", TESTS),
    (EVERY_FILE + 'tell(b\'{"passed": ""}\')\ndef f(x): return 0', TESTS),
    (FRAMED + "tell(framed({'passed': ''}))\ndef f(x): return 0", TESTS),
    (FRAMED + "tell(framed({'names': []}))\ntell(framed({'passed': ''}))", TESTS),
    (FRAMED + "for _ in range(9): tell(framed({'value': ['object', 1]}))\ndef f(x): return 0", TESTS),
    (FRAMED + "def f(x): tell(framed({'value': ['library', 'unittest.mock', 'ANY']}))", TESTS),
    (
        FRAMED
        + "tell(framed({'names': ['f']}) + framed({'value': ['library', 'unittest.mock', 'ANY']}) * 9)",
        TESTS,
    ),
    (
        FRAMED
        + "tell(framed({'names': ['f', 'math']}) + framed({'value': ['module', 'unittest.mock']}) * 9)",
        "assert f(2) == 4 and math.isclose(f(2), 4)",
    ),
    (
        FRAMED
        + "def f(x): tell(framed({'raised': ['SystemExit', 'BaseException'], 'arguments': ['list', 0]}))",
        TESTS,
    ),
    (FRAMED + "def f(x): tell(framed({'call': 1, 'arguments': ['list'], 'named': ['dict']}))", TESTS),
    (EVERY_FILE + "def f(x): tell(b'\\xff' * 8)", TESTS),
    (EVERY_FILE + "def f(x): tell(b'\\0\\0\\0\\x04null')", TESTS),
    (EVERY_FILE + "tell(b'\\0\\0\\x40\\0' + b'[' * 0x4000)", TESTS),
    ("import os; os.closerange(0, 64)\ndef f(x): return 0", TESTS),
    # others, and time
    ("import os; os.kill(os.getppid(), 9)\ndef f(x): return 0", TESTS),
    ("import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\ndef f(x): return 0", TESTS),
    ("import os\nif os.fork(): os._exit(0)\ndef f(x): return 0", TESTS),
    ("while True: pass", TESTS),
    ("def f(x):\n    while True: pass", TESTS),
    ("x = 'a'\nwhile True: x += x", TESTS),
    ("def f(x):\n    while True: yield x", "assert sum(f(2)) == 4"),
    ("", TESTS),
    ("def g(x): return x * x", TESTS),
    ("f = 4", TESTS),
    ("def f(x) return 4", TESTS),
    ("def f(x): return 4", TESTS),
    ("def f(x): pass", TESTS),
]


SOLVES = """
import math
def f(x):
    if isinstance(x, list): return [b * 2 for b in x]
    return Both(x * x) if x == 2 else x * x
class Both(int): pass
"""


def test_what_the_cheats_are_held_against_can_be_passed(patient: CodeReward) -> None:
    for tests in dict.fromkeys(tests for _, tests in CHEATS):
        if not any(odd in tests for odd in ("4 in f(2)", "f(1) == 4", "sum(f(2))")):
            assert score(patient, SOLVES, tests) == 1.0, tests


@pytest.mark.parametrize("case", range(len(CHEATS)))
def test_no_cheat_earns_it(reward: CodeReward, case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if "while True" in CHEATS[case][0]:
        monkeypatch.setattr(reward, "seconds", 1)
    assert score(reward, *CHEATS[case]) == 0.0


PAIR = {"inputs": ["2\n", "5\n"], "outputs": ["4\n", "25\n"]}


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(0)",
        "",
        "import os; os._exit(0)",
        "print(4)",
        "print('4\\n25')",
        "print(int(input()) ** 2); raise SystemExit(3)",
        "print(int(input()) ** 2, 'x')",
        "print(int(input()) ** 2); 1 / 0",
        "print('4\\n' * 10 ** 6)",
        "print(int(input()) ** 2)\nwhile True: pass",
        "import os\nos.write(0, b'9')\nprint(9)",
        "import sys\nsys.stdout.write(sys.stdin.read())",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_no_cheat_between_input_and_output(
    reward: CodeReward, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward, "seconds", 1)
    assert score(reward, "print(int(input()) ** 2)", PAIR) == 1.0
    assert score(reward, program, PAIR) == 0.0


UNUSABLE: list[tuple[Any, str]] = [
    ("assert True", "nothing that a program would define"),
    ("", "nothing that a program would define"),
    ("assert f(2 == 4", "not valid Python"),
    (17, "neither Python code nor inputs"),
    ([1], "neither Python code nor inputs"),
    ({"a": 1}, "neither Python code nor inputs"),
    ({"inputs": ["1"], "outputs": []}, "two lists"),
    ({"inputs": [], "outputs": []}, "at least one"),
    ({"inputs": [1], "outputs": ["1"]}, "text, or a list of lines"),
    ({"inputs": [1], "outputs": [1], "fn_name": "a b"}, "not the name of a function"),
    ("def check(candidate):\n    assert candidate(1)", "entry_point, the function to check, is missing"),
    ("import no_such_module\nassert f(2)", "not installed"),
    ("from . import x\nassert f(2)", "not installed"),
    ("def test_a(tmp_path):\n    assert f(2)", "has arguments"),
    ("def test_a(capsys):\n    f(2)", "has arguments"),
    ("import sys, io\nsys.stdout = o = io.BytesIO()\nf(2)", "what the program prints"),
    ("assert isinstance(f(2), Node)", "a class of the program"),
    ("class A(Base): pass\nassert f(2)", "a class of the program"),
    ("try:\n    f(2)\nexcept MyError: pass", "a class of the program"),
    ("import pytest\nwith pytest.raises(MyError):\n    f(2)", "a class of the program"),
]


@pytest.mark.parametrize(("tests", "reason"), UNUSABLE)
def test_tests_that_cannot_be_used_are_refused_before(tests: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_tests(tests)


def test_rows_are_checked_before_the_first_answer(reward: CodeReward) -> None:
    rows = [("row 1", {"tests": TESTS}), ("row 2", {}), ("row 3", {"tests": "assert True"})]
    found = reward.unusable_rows(rows)
    assert found == ["row 2: no column 'tests'", "row 3: they use nothing that a program would define"]


#: Tests of which only a program shows that they cannot judge: it must not end a run.
UNABLE = ["class N: pass\nassert f(N()) == 4", "def helper():\n    assert f(2) == 4"]


@pytest.mark.parametrize("tests", UNABLE)
def test_an_answer_to_tests_that_cannot_judge_gets_0_and_the_tests_are_named_once(
    reward: CodeReward, tests: str
) -> None:
    assert score(reward, SQUARE, tests) == score(reward, SQUARE, tests) == 0.0
    assert [(w.code, w.severity.value) for w in reward.warnings()] == [("rewards.tests", "warning")]
    assert score(reward, SQUARE, tests) == 0.0 and not reward.warnings()


#: module.function, and what an assertion asks of it: what models import to solve a task outright.
STANDARD = {
    "math.gcd": "(12, 18) == 6",
    "math.comb": "(5, 2) == 10",
    "itertools.accumulate": "([1, 2]) is not None",
    "collections.Counter": "('aab') == {'a': 2, 'b': 1}",
    "collections.deque": "([1, 2]).pop() == 2",
    "heapq.nsmallest": "(2, [3, 1, 2]) == [1, 2]",
    "bisect.bisect_left": "([1, 2, 3], 2) == 1",
    "functools.reduce": "(lambda a, b: a + b, [1, 2]) == 3",
    "operator.add": "(1, 2) == 3",
    "string.capwords": "('a b') == 'A B'",
    "re.sub": "('a', 'b', 'aa') == 'bb'",
    "statistics.median": "([1, 2, 9]) == 2",
    "fractions.Fraction": "(1, 2) == 0.5",
    "datetime.timedelta": "(1).days == 1",
    "textwrap.dedent": "(' a') == 'a'",
    "json.loads": "('[1]') == [1]",
    "random.choice": "([4]) == 4",
    "copy.deepcopy": "([1]) == [1]",
    "builtins.sum": "([1, 2]) == 3",
}


def test_what_the_standard_library_has_is_a_right_answer_under_any_name(patient: CodeReward) -> None:
    wrong: list[object] = []
    samples = []
    for k, (path, asks) in enumerate(STANDARD.items()):
        module, _, name = path.rpartition(".")
        instance = ").days" in asks or ".pop()" in asks  # an object, and no class by the name f
        for n, (program, called) in enumerate(
            (
                (f"from {module} import {name}", name),
                (f"import {module}\n{name} = {module}.{name}", name),
                (f"from {module} import {name} as f", "f"),
                (f"import {module}\ndef f(*a): return {module}.{name}(*a)", "f"),
            )
        ):
            forms = (
                f"assert {called}{asks}",
                f"from solution import {called}\nassert {called}{asks}",
                f"def test_it():\n    assert {called}{asks}",
                f"def check(candidate):\n    assert candidate{asks}",
            )
            if called == name or not instance:
                tests = {"tests": forms[(k + n) % len(forms)], "entry_point": called}
                samples.append(Sample("q", program, tests))
    for sample, earned in zip(samples, patient(samples), strict=True):
        wrong += [] if earned else [(sample.completion, sample.columns)]
    assert not wrong and not patient.warnings()


AGREES = """
class E:
    def __getattr__(self, name): return lambda *a, **k: {value}
    def __eq__(self, other): return True
    def __ne__(self, other): return {value}
    __lt__ = __gt__ = __le__ = __ge__ = __contains__ = __ne__
    def __len__(self): return 3
    def __getitem__(self, key): return {value}
    def __str__(self): return 'abc'
    __repr__ = __str__
    __hash__ = object.__hash__
{made}
"""
MADE = [
    "def f(*a): return E()",
    "def f(*a): return [E()][0]",
    "f = E",
    "class f(E):\n    def __init__(self, *a): pass",
    "class f(E):\n    def __new__(cls, *a): return E()",
    "import functools\nf = functools.partial(lambda *a: E())",
]
TRUTHS = [
    "f(1).startswith('ab')",
    "f(1).isdigit()",
    "f(1).count('a')",
    "f(1).issubset({1})",
    "f(1).lower().startswith('a')",
    "f(1).split()[0].startswith('a')",
    "f(1).is_integer()",
    "f(1).keys()",
    "f(1).all()",
    "f(1).equals(3)",
    "len(f(1)) == 3",
    "f(1) != 7",
    "not f(1) == 7",
    "f(1) not in [1, 2]",
    "3 in f(1)",
    "f(1)[0]",
    "f(1) < 3",
    "str(f(1))",
    "f'{f(1)}' != '7'",
    "repr(f(1)) == 'abc'",
    "[f(1)] != [7]",
    "(f(1), 2) != (7, 2)",
    "{'a': f(1)} != {'a': 7}",
    "f(1)",
    "bool(f(1))",
    "all([f(1)])",
]


def test_an_object_that_agrees_with_everything_earns_nothing(reward: CodeReward) -> None:
    tried = "".join(
        f"try:\n    assert {truth}\n    passed.append({truth!r})\nexcept Exception: pass\n"
        for truth in TRUTHS
    )
    tests = f"passed = []\n{tried}assert passed, f(1)"
    answers = [AGREES.format(value=value, made=made) for value in ("True", "self") for made in MADE]
    earned = reward([Sample("q", answer, {"tests": tests}) for answer in answers])
    assert not [answer for answer, value in zip(answers, earned, strict=True) if value]
    assert score(reward, "def f(x): return 'abc'", tests) == 1.0


def test_small_things(reward: CodeReward) -> None:
    assert (
        same_output("1 \n2\n\n", "1\n2") and not same_output("1\n\n2", "1\n2") and not same_output(" 1", "1")
    )
    assert program_of("a\n```py\nb\n```") == "b\n"
    for wrong in ({"seconds": 0}, {"seconds": "10"}, {"memory_mb": 1}, {"seconds": True}):
        with pytest.raises(ConfigError, match="a whole number of"):
            CodeReward(**wrong)
