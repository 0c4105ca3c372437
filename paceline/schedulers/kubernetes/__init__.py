"""Jobs on Kubernetes: Kubeflow Trainer's TrainJob, JobSet, Indexed Job, and Kubeflow's PyTorchJob v1."""
