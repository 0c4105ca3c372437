"""Read the tensors that a run did not train from the model it started from, for its export."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.format.safetensors_file import TensorEntry, read_rows
from paceline.checkpoint.format.untrained_tensors import STATE_KEY, TensorBytes, digest_of, places_of
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError
from paceline.core.files import open_file, read_bytes
from paceline.core.json_types import as_object
from paceline.models.loading.stored_dtype import weights_folder

_PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def carried_entries(reader: CheckpointReader) -> list[TensorEntry]:
    """Return the carried tensors of the checkpoint's model, to be read from their folder when written.

    Raises CheckpointError ``export.carried`` unless the folder holds exactly what the run started from.
    """
    state = as_object(reader.state.get(STATE_KEY))
    names = state.get("names")
    if not isinstance(names, list) or not names:
        return []
    source, revision = str(state.get("name_or_path")), state.get("revision")
    try:
        folder = weights_folder(source, None if revision is None else str(revision))
        places = places_of(folder, reader.path)
        missing = [str(n) for n in names if n not in places]
        found = {str(n): places[str(n)] for n in names if n in places}
        if missing:
            raise _changed(source, f"{len(missing)} are not there: {', '.join(missing[:4])}", len(names))
        if (digest := digest_of(found)) != state.get("sha256"):
            raise _changed(source, f"sha256 {digest[:12]}, was {str(state.get('sha256'))[:12]}", len(names))
    except (OSError, ValueError) as error:
        raise _changed(source, str(error)[:300], len(names)) from error
    return [
        TensorEntry(name, place.slot.dtype, place.slot.shape, _Load(place)) for name, place in found.items()
    ]


def carried_files(reader: CheckpointReader) -> dict[str, bytes]:
    """Return the settings of image, video and audio processors beside the carried tensors."""
    state = as_object(reader.state.get(STATE_KEY))
    if not state.get("names"):
        return {}
    revision = state.get("revision")
    folder = weights_folder(str(state.get("name_or_path")), None if revision is None else str(revision))
    found = (folder / name for name in _PROCESSORS)
    return {path.name: read_bytes(path) for path in found if path.is_file()}


@dataclass(frozen=True)
class _Load:
    """Reads one tensor when it is called."""

    place: TensorBytes

    def __call__(self) -> Tensor:
        with open_file(self.place.file) as file:
            rows = self.place.slot.shape[0] if self.place.slot.shape else 1
            return read_rows(file, self.place.slot, 0, rows)


def _changed(source: str, found: str, count: int) -> CheckpointError:
    return CheckpointError(codes.EXPORT_CARRIED(source, found, count=count))
