"""Launchers: from a worker's command and the cluster to the processes of this node. A file a launcher."""
