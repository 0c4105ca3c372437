"""The format of a checkpoint on disk: names, manifest, hashes, safetensors files. torch only for tensors."""
