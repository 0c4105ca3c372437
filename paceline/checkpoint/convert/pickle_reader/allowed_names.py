"""The names that a checkpoint's pickle may hold. None is imported: they stay texts. No torch."""

from __future__ import annotations

from paceline.core.safetensors_header import STORED_DTYPES

#: A storage's class in a file of torch, and safetensors' word for its dtype.
STORAGES = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
#: torch's dtypes, and safetensors' words.
DTYPE_WORDS = {f"torch.{name}": word for word, (name, _) in STORED_DTYPES.items() if name}
REBUILD_TENSOR = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
REBUILD_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
REBUILD_TYPE = "torch._tensor._rebuild_from_type_v2"  # (function, class, its arguments, attributes)
_DCP = "torch.distributed.checkpoint."
DCP_METADATA = f"{_DCP}metadata.Metadata"
DCP_TENSOR = f"{_DCP}metadata.TensorStorageMetadata"
DCP_BYTES = f"{_DCP}metadata.BytesStorageMetadata"
DCP_INDEX = f"{_DCP}metadata.MetadataIndex"
DCP_STORAGE = f"{_DCP}filesystem._StorageInfo"
_DEEPSPEED = "deepspeed.runtime."
LISTED = frozenset(
    {
        *STORAGES,
        *DTYPE_WORDS,
        *REBUILD_TENSOR,
        *REBUILD_PARAMETER,
        REBUILD_TYPE,
        "torch.Tensor",
        "torch.storage.UntypedStorage",
        "torch.Size",
        "torch.device",
        "torch.contiguous_format",
        "torch.preserve_format",
        "torch.strided",
        "torch.serialization._get_layout",
        "torch.nn.parameter.Parameter",
        "collections.OrderedDict",
        "collections.defaultdict",
        "builtins.dict",
        "builtins.set",
        "builtins.list",
        "builtins.bytearray",
        "builtins.object",
        "__builtin__.dict",
        "__builtin__.set",
        "__builtin__.object",
        "copyreg._reconstructor",
        "copy_reg._reconstructor",
        "argparse.Namespace",
        "pathlib.PosixPath",
        # torch.distributed.checkpoint
        DCP_METADATA,
        DCP_TENSOR,
        DCP_BYTES,
        DCP_INDEX,
        DCP_STORAGE,
        f"{_DCP}metadata.TensorProperties",
        f"{_DCP}metadata._MEM_FORMAT_ENCODING",
        f"{_DCP}metadata.ChunkStorageMetadata",
        f"{_DCP}metadata.StorageMeta",
        # DeepSpeed
        f"{_DEEPSPEED}fp16.loss_scaler.LossScaler",
        f"{_DEEPSPEED}fp16.loss_scaler.DynamicLossScaler",
        f"{_DEEPSPEED}zero.config.ZeroStageEnum",
        f"{_DEEPSPEED}zero.config.DeepSpeedZeroConfig",
        "deepspeed.utils.tensor_fragment.fragment_address",
        # numbers of NumPy, in random states
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy.core.multiarray.scalar",
        "numpy.ndarray",
        "numpy.dtype",
        "_codecs.encode",
    }
)
