"""What a checkpoint is on disk: names, manifest, hashes, safetensors files. No torch but for tensors."""
