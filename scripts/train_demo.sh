#!/usr/bin/env bash
# The whole main job on the small corpus in data/demo.en-de: preprocess, train a verifier, translate the training text with it,
# train a drafter on that, and compare them as scripts/demo.sh does.
#
#   scripts/train_demo.sh
#
# Some minutes on a CPU. Everything goes to DEMO_DIR (runs/train-demo in the checkout); what is there already of text and models is
# kept, and an interrupted training goes on from its last checkpoint, so after Ctrl-C the same command continues.
#
# DEMO_UPDATES, DEMO_DRAFTER_UPDATES   length of the two trainings
# DEMO_BATCH   sentences decoded together (1)
# DEMO_SHARDS  parts that the training text is translated in (4)
# DEMO_TEXT    another corpus: folder with {train,valid,test}.{en,de}
# BPE_SYMBOLS  merges of the joint BPE (3000)
# LAYERS, EMBED_DIM and the other variables of train.sh (./train.sh --help) hold for both trainings
# PYTHON_BIN   folder with fairseq's commands (default: the active environment, else .venv)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

DEMO_DIR=${DEMO_DIR:-$ROOT/runs/train-demo}
TEXT=${DEMO_TEXT:-$ROOT/data/demo.en-de}
VERIFIER_UPDATES=${DEMO_UPDATES:-900}
DRAFTER_UPDATES=${DEMO_DRAFTER_UPDATES:-600}
need_fairseq fairseq-train
mkdir -p "$DEMO_DIR"
trap 'echo; echo "train_demo.sh: stopped; the same command goes on from here" >&2; exit 130' INT

step() {
    printf '\n== %s\n' "$*"
}

step "1/5 text: $TEXT"
BPE_SYMBOLS=${BPE_SYMBOLS:-3000} preprocess_text en de "$TEXT" "$DEMO_DIR/data" "$DEMO_DIR/preprocess.log"
echo "data for fairseq: $DEMO_DIR/data/bin"

export DATA=$DEMO_DIR/data/bin CPU=1 SRC=en TGT=de
export LAYERS=${LAYERS:-2} EMBED_DIM=${EMBED_DIM:-192} HEADS=${HEADS:-4} MAX_POSITIONS=${MAX_POSITIONS:-256}
export MAX_TOKENS=${MAX_TOKENS:-1500} UPDATE_FREQ=${UPDATE_FREQ:-1} WARMUP=${WARMUP:-400} LR=${LR:-0.002}
export BLOCK=${BLOCK:-3} CLIP_NORM=${CLIP_NORM:-1} WEIGHT_DECAY=${WEIGHT_DECAY:-0} KEEP=1
export LOG_INTERVAL=${LOG_INTERVAL:-50} SAVE_INTERVAL_UPDATES=${SAVE_INTERVAL_UPDATES:-200}

# train NAME UPDATES
train() {
    local folder=$DEMO_DIR/$1
    if [ -e "$folder/done-$2" ]; then
        echo "trained already: $folder"
        return
    fi
    mkdir -p "$folder"
    MAX_UPDATE=$2 SAVE_DIR=$folder train_with_progress "$1" "$2" "$folder" "$ROOT/train.sh" --no-epoch-checkpoints --num-workers 0
}

step "2/5 the verifier"
ROLE=verifier train verifier "$VERIFIER_UPDATES"
VERIFIER=$DEMO_DIR/verifier/checkpoint_last.pt

step "3/5 the verifier's own translations of the training text"
VERIFIER=$VERIFIER OUT=$DEMO_DIR/distilled SHARDS=${DEMO_SHARDS:-4} "$ROOT/scripts/distill.sh"

step "4/5 the drafter: one decoder layer on the verifier's encoder"
DATA=$DEMO_DIR/distilled/bin VERIFIER=$VERIFIER INIT_PARTS=all FREEZE_ENCODER=1 ENCODER_LAYERS=$LAYERS DECODER_LAYERS=1 \
    BLOCKS_PER_SENTENCE=${BLOCKS_PER_SENTENCE:-8} train drafter "$DRAFTER_UPDATES"
DRAFTER=$DEMO_DIR/drafter/checkpoint_last.pt

step "5/5 the test set, decoded with both"
DATA=$DEMO_DIR/data/bin CODES=$DEMO_DIR/data/codes VERIFIER=$VERIFIER DRAFTER=$DRAFTER DEMO_DIR=$DEMO_DIR/out "$ROOT/scripts/demo.sh"
