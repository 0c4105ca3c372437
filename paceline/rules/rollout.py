"""Rules for on-policy algorithms and their server: unsupported combinations, and settings under which nothing
is learned."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from urllib.parse import urlsplit

from paceline.config.sections.rollout import RolloutOptions, ServerOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.parallel import WHOLE, in_words, places, sharding_axes, sharding_keys, whole_again
from paceline.rules.rule import Context, Rule

_ROLLOUT = "training.rollout"
MODEL = "model"  # name of the reward that is a model, and of its option


def _rollout(c: Context) -> RolloutOptions | None:
    return (c.training.rollout or RolloutOptions()) if c.algorithm.on_policy else None


def strategies(c: Context) -> Iterator[Diagnostic]:
    """strategy.rollouts"""
    spec = c.algorithm
    options = spec.generation(c.training)
    if options is None:
        return
    # a scalar head cannot be split
    scores = spec.value_model or any(r.name == MODEL for r in options.rewards)
    wrong = sharding_keys(c, sharding_axes(c, scores=scores))
    if wrong:
        who = spec.name if spec.value_model or not scores else f"{spec.name} with a reward model"
        yield c.at(
            codes.STRATEGY_ROLLOUTS(
                who=who,
                in_words=in_words(wrong),
                hint=whole_again(
                    wrong, WHOLE, frozenset() if scores or spec.lends_head else frozenset({"tp"})
                ),
            ),
            "training.algorithm",
            *places(wrong),
        )


def rewards(c: Context) -> Iterator[Diagnostic]:
    """rollout.no_rewards, rewards.code_off"""
    options = _rollout(c)
    if options is None:
        return
    if not options.rewards and c.starting:
        yield c.at(
            codes.ROLLOUT_NO_REWARDS(found="no training.rollout.rewards"),
            f"{_ROLLOUT}" if c.training.rollout is None else f"{_ROLLOUT}.rewards",
        )
    if any(r.name == "code" for r in options.rewards) and not options.allow_code_execution:
        yield c.problem(
            codes.REWARDS_CODE_OFF,
            "the reward 'code' runs programs that the model writes",
            f"{_ROLLOUT}.allow_code_execution",
            hint="set allow_code_execution: true, on a machine where this is acceptable",
        )


def code_sandbox(c: Context) -> Iterator[Diagnostic]:
    """rewards.no_isolation, rewards.unsandboxed, rewards.no_code"""
    options = _rollout(c)
    if options is None:
        return
    runs_code = options.allow_code_execution and any(r.name == "code" for r in options.rewards)
    if options.allow_unsandboxed_code and not runs_code:
        yield c.at(codes.REWARDS_NO_CODE(), f"{_ROLLOUT}.allow_unsandboxed_code")
    if not runs_code or not c.facts.code_sandbox:
        return
    if options.allow_unsandboxed_code:
        yield c.at(
            codes.REWARDS_UNSANDBOXED(found=c.facts.code_sandbox), f"{_ROLLOUT}.allow_unsandboxed_code"
        )
    else:
        yield c.problem(
            codes.REWARDS_NO_ISOLATION,
            "this machine cannot isolate the model's programs in a sandbox",
            f"{_ROLLOUT}.allow_code_execution",
            found=c.facts.code_sandbox,
            hint="use Linux 5.12 or newer with user namespaces for this user, a reward that runs no"
            " code, or allow_unsandboxed_code: true where losing all files of this user is"
            " acceptable",
        )


def reward_models(c: Context) -> Iterator[Diagnostic]:
    """rewards.model_options, rewards.two_models"""
    options = _rollout(c)
    judges = [r for r in options.rewards if r.name == MODEL] if options is not None else []
    for judge in judges:
        if (
            set(judge.options) != {MODEL}
            or not isinstance(judge.options[MODEL], str)
            or not judge.options[MODEL]
        ):
            yield c.at(
                codes.REWARDS_MODEL_OPTIONS(found=f"options: {dict(judge.options)}"), f"{_ROLLOUT}.rewards"
            )
    if len(judges) > 1:
        yield c.at(
            codes.REWARDS_TWO_MODELS(found=f"{len(judges)} rewards named 'model'"), f"{_ROLLOUT}.rewards"
        )


def no_kl(c: Context) -> Iterator[Diagnostic]:
    """ppo.no_kl"""
    spec = c.algorithm
    if (
        spec.on_policy
        and spec.kl
        and not spec.options_of(c.training)[spec.kl]
        and spec.model_named(c.training, "reference")
    ):
        yield c.at(
            codes.PPO_NO_KL(kl=spec.kl, reference=spec.named["reference"]),
            f"{spec.key}.{spec.named['reference']}",
            f"{spec.key}.{spec.kl}",
        )


def _longer_rows(c: Context, options: RolloutOptions) -> str:
    positions, longer = c.facts.max_position_embeddings, 2 * options.max_completion_length
    if positions is not None and longer > positions:
        return f"training.rollout.max_completion_length: {min(c.config.data.max_length, positions) // 2}"
    return f"data.max_length: {longer}"


def lengths(c: Context) -> Iterator[Diagnostic]:
    """rollout.length"""
    options = _rollout(c)
    if options is not None and options.max_completion_length >= c.config.data.max_length:
        yield c.at(
            codes.ROLLOUT_LENGTH(
                found=f"max_completion_length: {options.max_completion_length}, data.max_length:"
                f" {c.config.data.max_length}",
                hint=_longer_rows(c, options),
            ),
            "data.max_length",
        )


def groups(c: Context) -> Iterator[Diagnostic]:
    """rollout.one_answer, rollout.greedy, rollout.filter_groups, rollout.max_redraws"""
    options = _rollout(c)
    if options is None:
        return
    if options.max_redraws and not options.filter_groups:
        yield c.at(codes.ROLLOUT_MAX_REDRAWS(), f"{_ROLLOUT}.max_redraws", f"{_ROLLOUT}.filter_groups")
    if not c.algorithm.uses_group_baseline(c.training):
        if options.filter_groups:
            yield c.at(codes.ROLLOUT_FILTER_GROUPS(name=c.algorithm.name), f"{_ROLLOUT}.filter_groups")
        return
    if c.algorithm.group_size(c.training) == 1:
        yield c.at(
            codes.ROLLOUT_ONE_ANSWER(found=f"num_generations: {c.algorithm.group_size(c.training)}"),
            f"{_ROLLOUT}.num_generations",
        )
    elif options.temperature == 0:
        yield c.at(codes.ROLLOUT_GREEDY(), f"{_ROLLOUT}.temperature")


def sections(c: Context) -> Iterator[Diagnostic]:
    """train.algorithm_section"""
    learners = [spec.name for spec in c.algorithms if spec.on_policy]
    wrong = [
        name for name in learners if getattr(c.training, name) is not None and c.training.algorithm != name
    ]
    wrong += ["rollout"] if c.training.rollout is not None and not c.algorithm.on_policy else []
    for name in wrong:
        yield c.problem(
            codes.TRAIN_ALGORITHM_SECTION,
            f"training.{name} configures training on the model's own answers, but this run's"
            f" algorithm is {c.training.algorithm}",
            f"training.{name}",
            "training.algorithm",
            found=f"algorithm: {c.training.algorithm}",
            hint=f"set algorithm: {' or '.join(learners) if name == 'rollout' else name}, or remove the"
            " section",
            severity=Severity.WARNING,
        )


WHOLE_MODEL = ("transfer", "folder")  # ways that send all weights
_SERVER, _SERVERS = "training.rollout.server", "training.rollout.servers"
_START = "training.rollout.start"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _servers(c: Context) -> tuple[ServerOptions, ...]:
    rollout = c.training.rollout
    return () if rollout is None else rollout.all_servers


def _key(c: Context) -> str:
    """Return the key that names the servers."""
    rollout = c.training.rollout
    if rollout is not None and rollout.start is not None:
        return _START
    return _SERVERS if rollout is not None and rollout.servers else _SERVER


def address(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_url, rollout.server_key, rollout.servers_twice, rollout.server_public,
    rollout.start_nodes
    """
    servers, rollout = _servers(c), c.training.rollout
    if rollout is None:
        return
    ways = {"server": rollout.server, "servers": rollout.servers or None, "start": rollout.start}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        several = " and ".join(given)
        yield c.at(codes.ROLLOUT_SERVERS_TWICE(found=several), *(f"{_ROLLOUT}.{name}" for name in given))
    if rollout.start is not None:
        if c.config.launch.nnodes > 1:
            nodes = f"nnodes: {c.config.launch.nnodes}"
            yield c.at(codes.ROLLOUT_START_NODES(found=nodes), _START, "launch.nnodes")
        return
    urls = [server.url.rstrip("/") for server in servers]
    if again := sorted({url for url in urls if urls.count(url) > 1}):
        yield c.at(codes.ROLLOUT_SERVERS_TWICE(found=f"{', '.join(again)} more than once"), _SERVERS)
    for server in servers:
        yield from _address(c, server)


def _address(c: Context, server: ServerOptions) -> Iterator[Diagnostic]:
    single = _key(c) == _SERVER
    url, key = (f"{_SERVER}.url", f"{_SERVER}.api_key_env") if single else (_SERVERS, _SERVERS)
    try:
        parts = urlsplit(server.url)
        good = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not parts.path.strip("/")
            and parts.port != 0
        )
    except ValueError:  # a port that is no number
        good = False
    if not good or parts.username is not None:
        yield c.at(codes.ROLLOUT_SERVER_URL(), url)
    elif server.api_key_env and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        yield c.at(codes.ROLLOUT_SERVER_KEY(), *dict.fromkeys((url, key)))
    if good and _is_public(parts.hostname or ""):
        yield c.at(codes.ROLLOUT_SERVER_PUBLIC(), url)


def _is_public(host: str) -> bool:
    """Whether a host is a public address; False for a name."""
    try:
        return ip_address(host).is_global
    except ValueError:
        return False


def weights(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_cut"""
    rollout, lora = c.training.rollout, c.config.lora
    if not _servers(c) or rollout is None or rollout.weights not in WHOLE_MODEL:
        return
    if lora is not None and lora.quantization_bit is not None:
        detail = "they are quantised to 4 bits here"
        yield c.at(codes.ROLLOUT_SERVER_CUT(detail=detail), f"{_ROLLOUT}.weights", "lora.quantization_bit")


def tower(c: Context) -> Iterator[Diagnostic]:
    """rollout.server_tower"""
    if not _servers(c) or not c.facts.composite:
        return
    yield c.at(codes.ROLLOUT_SERVER_TOWER(composite=c.facts.composite), _key(c))


ROLLOUT_RULES: tuple[Rule, ...] = (
    strategies,
    rewards,
    code_sandbox,
    reward_models,
    no_kl,
    lengths,
    groups,
    sections,
    address,
    weights,
    tower,
)
