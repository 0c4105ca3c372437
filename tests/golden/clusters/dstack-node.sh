# Written by `paceline launch`: one launcher a node, which starts the node's ranks.
set -u
cd -- /paceline || exit 2
paceline train my.yaml training.max_steps=4 training.output_dir=run launch.max_restarts=3 --nnodes 4 --nproc 8 --resume auto \
  --node-rank "$DSTACK_NODE_RANK" --master-addr "$DSTACK_MASTER_NODE_IP" --master-port 29500 &
launcher=$!
# It saves, and leaves with 75
trap 'kill -TERM "$launcher" 2>/dev/null' TERM INT HUP
while kill -0 "$launcher" 2>/dev/null; do wait "$launcher"; done
wait "$launcher"
code=$?
case "$code" in 0|70) exit 0 ;; esac
exit "$code"
