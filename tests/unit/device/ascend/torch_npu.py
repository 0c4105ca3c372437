"""What importing Ascend's package does to torch: it knows the device ``npu``."""

from emulated_device import register

register("npu")
