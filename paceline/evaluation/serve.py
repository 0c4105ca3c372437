"""``python -m paceline.evaluation.serve RUN [--port N] [--name NAME] [--dtype D]``: an OpenAI-compatible
server on loopback, behind a token, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, Response
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from paceline.core.diagnostics import all_codes
from paceline.core.errors import ConfigError, ExitCode
from paceline.evaluation.job_checks import DTYPES
from paceline.evaluation.open_run import opened
from paceline.evaluation.prompts import default_system
from paceline.evaluation.server.app import application
from paceline.evaluation.server.desk import Served
from paceline.generation import codes
from paceline.generation.settings import run_of, sampling_of
from paceline.launch.loopback_guard import HOSTS, Guard, listening_on
from paceline.launch.program import program
from paceline.models.special_tokens import end_tokens

PORT = 8766
_LAST_SECONDS = 3  # for answers that are being written at Ctrl-C


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Serve; return the exit code. Paceline's errors are printed, not raised."""
    options = _parser().parse_args(None if argv is None else list(argv))
    try:
        run = Path(options.run)
        served = load(run, options.name or name_of(run), options.dtype)
        with _listening(options.port) as server:
            # Loopback is open to every user of this machine
            token = secrets.token_urlsafe(24)
            app = front(served, token)
            url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
            temperature, most = served.sampling.temperature, served.sampling.max_new_tokens
            chosen = "greedy" if temperature <= 0 else f"temperature {temperature:g}"
            print(f"{served.name} at {url} ({chosen}, at most {most} tokens)")
            if not served.tokenizer.chat_template:
                print("its tokenizer has no chat template: /v1/completions only")
            print(f"  OPENAI_BASE_URL={url}\n  OPENAI_API_KEY={token}\nCtrl-C ends it", flush=True)
            listen(app, server)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


def load(run: Path, name: str, dtype: str) -> Served:
    """Load the model of a run, checkpoint or folder onto this machine's accelerator, else the CPU.

    Raises ConfigError.
    """
    if dtype not in DTYPES:
        raise ConfigError(
            codes.GENERATION_OPTIONS("there is no such dtype here", "--dtype", dtype, ", ".join(DTYPES))
        )
    sampling = sampling_of(run, {})
    model, tokenizer = opened(run)
    ends = tuple(end_tokens(model))
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if not isinstance(model, PreTrainedModel) or not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "the server needs a tokenizer that has a tokenizer.json",
                str(run),
                type(tokenizer).__name__,
                "paceline chat",
            )
        )
    torch.nn.Module.to(model, device=kind or torch.device("cpu"), dtype=getattr(torch, dtype))
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (tokenizer.eos_token_id or 0)
    return Served(name, model, tokenizer, sampling, ends, pad, default_system(run))


def name_of(run: Path) -> str:
    """Return the name that requests may use: the run's name, with the step of a checkpoint, else the
    folder's."""
    run_dir, path = run_of(run), run.expanduser().resolve()
    return path.name if run_dir is None or run_dir.root == path else f"{run_dir.root.name}/{path.name}"


def front(served: Served, token: str) -> Starlette:
    """Return the whole application: token and Host are checked before anything else is read."""
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
        Middleware(Guard, token=token, refuse=refused),
    ]
    return application(served, guards)


def refused() -> Response:
    """Return the answer to a request without the token, as OpenAI's clients read it."""
    message = "the key is not the one that `paceline serve` printed (OPENAI_API_KEY)"
    error = {"message": message, "type": "invalid_request_error", "code": "invalid_api_key"}
    return JSONResponse({"error": error}, 401)


def listen(app: Starlette, server: socket.socket) -> None:
    """Answer on a socket that listens, until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_LAST_SECONDS,
    )
    all_codes()  # read now: a server that is out of file descriptors could not open them later
    uvicorn.Server(config).run(sockets=[server])


def _listening(port: int | None) -> socket.socket:
    try:
        return listening_on(port, PORT)
    except (OSError, OverflowError) as error:
        raise ConfigError(codes.GENERATION_PORT(f"--port {port}", str(error))) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline serve", description=__doc__, allow_abbrev=False)
    parser.add_argument("run", help="a run directory, one of its checkpoints, or a Hugging Face folder")
    parser.add_argument("--port", type=int, help=f"on 127.0.0.1 [{PORT}, or a free one]")
    parser.add_argument("--name", help="the model's name in requests")
    parser.add_argument("--dtype", default="float32", help=", ".join(DTYPES))
    return parser


if __name__ == "__main__":
    sys.exit(main())
