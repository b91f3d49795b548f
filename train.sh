#!/usr/bin/env bash
# Trains a block drafter, a small autoregressive drafter, or the verifier that either drafts for.
#
#   DATA=bin SAVE_DIR=checkpoints/drafter VERIFIER=verifier.pt ./train.sh [fairseq-train's flags ...]
#   ROLE=verifier DATA=bin SAVE_DIR=checkpoints/verifier ./train.sh [fairseq-train's flags ...]
#
# The defaults are the published hyper-parameters. An interrupted training goes on from SAVE_DIR/checkpoint_last.pt when the same
# command is given again.
#
# It takes all GPUs of this machine. On several machines, each of which must see DATA and SAVE_DIR, under torchrun (given on each)
# or SLURM (a task for each GPU, or one for each machine with all of its GPUs):
#
#   DATA=... SAVE_DIR=... torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
#       --no-python ./train.sh
#   DATA=... SAVE_DIR=... srun --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 ./train.sh
#
# DATA          folder that fairseq-preprocess wrote;  SRC, TGT  its languages (default: what the folder holds)
# SAVE_DIR      folder for the checkpoints
# RECIPE        what the defaults below are for: wmt14 (default; WMT14 en-de) and wmt16 (WMT16 en-ro), the published ones, or
#               low_resource, a pair of languages with 100 to 300 thousand pairs of sentences, 8 thousand joint BPE merges, and a
#               drafter (ROLE=ar_drafter) that learns from the verifier's own translations
# ROLE          drafter (default), ar_drafter (default with RECIPE=low_resource) or verifier
# VERIFIER      checkpoint that a new drafter starts from (default: random weights); ignored when SAVE_DIR has a checkpoint_last.pt
# VALID_VERIFIER   checkpoint of the verifier that each validation decodes with to measure what the drafter is worth: "accepted" (tokens
#               per iteration) and "alpha"; default: VERIFIER, as long as it is there; empty for none.  VALID_LINES  so many sentences
#               from the beginning of the validation set (200). checkpoint_best.pt goes by the loss all the same, unless the flags
#               --best-checkpoint-metric accepted --maximize-best-checkpoint-metric are given.
# INIT_PARTS    what it takes from the verifier: encoder (default) or all
# KD=1          an ar_drafter learns VERIFIER's distributions at each token (--criterion kd_loss), not the tokens alone
# LR, WARMUP, MAX_UPDATE, DROPOUT
#               0.0005, 10000, 300000, 0.1 (wmt14); 0.001, 4000, 50000, 0.2 (wmt16 and low_resource, whose verifier has DROPOUT 0.3)
# LABEL_SMOOTHING, WEIGHT_DECAY, CLIP_NORM, SEED   0.1, 0.01, 5, 1
# LR_SCHEDULER  inverse_sqrt (default), or another one of fairseq's: polynomial_decay falls to 0 at MAX_UPDATE, which serves a
#               short training best
# ADAM_BETAS, ADAM_EPS   (0.9, 0.999), 1e-6
# MAX_TOKENS    target tokens of a batch on each GPU (4096)
# UPDATE_TOKENS target tokens of an update on all GPUs: 131072 (wmt14), 65536 (wmt16), 16384 (low_resource)
# UPDATE_FREQ   batches of an update on each GPU (default: what comes closest to UPDATE_TOKENS with the GPUs that there are)
# GPUS          GPUs of this machine to train on (default: those that are visible); torchrun and SLURM with a task for each know it
# BLOCK, START_P, MINUS_P, TOTAL_UP   block size 25; glancing share 0.5, falling by 0.2 over TOTAL_UP updates (MAX_UPDATE)
# ARCH          block_6e6d512 (drafter), transformer_drafter (ar_drafter), transformer (verifier)
# LAYERS, EMBED_DIM, FFN_DIM, HEADS   of encoder and decoder: 6, 512, 4 * EMBED_DIM, EMBED_DIM / 64 (low_resource: 4, 256, 1024, 8,
#               and 8, 512, 2048, 8 for the verifier); also ENCODER_LAYERS, DECODER_LAYERS and DECODER_FFN_DIM
# FREEZE_ENCODER=1   leaves the drafter's encoder and what is shared with it as they are: with VERIFIER, decoding then runs one
#               encoder for both models
# BLOCKS_PER_SENTENCE   blocks of each sentence that the drafter sees at once (1); MAX_TOKENS counts the sentence once
# MAX_POSITIONS longest source and target, in tokens (1000)
# SAVE_INTERVAL_UPDATES   validates and saves every so many updates as well (default: after each epoch only)
# KEEP          newest checkpoints of either kind to keep, best and last aside (10)
# LOG_INTERVAL, TENSORBOARD   updates between two log lines (100); folder for TensorBoard's files (package tensorboardX)
# CPU=1         trains on the CPU, in one process unless torchrun or SLURM start more;  CPU_AUTOCAST=bf16  with matrix products in
#               bfloat16
# FP16          half precision: 1 (default), or 0; 0 on the CPU
# PYTHON_BIN    folder with fairseq's commands (default: the active environment, else .venv)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

need DATA "the folder that fairseq-preprocess wrote"
need SAVE_DIR "the folder for the checkpoints"
need_folder "$DATA" "the data folder (DATA)"
need_fairseq fairseq-train

# recipe LR WARMUP MAX_UPDATE DROPOUT UPDATE_TOKENS: what isn't set yet
recipe() {
    LR=${LR:-$1} WARMUP=${WARMUP:-$2} MAX_UPDATE=${MAX_UPDATE:-$3} DROPOUT=${DROPOUT:-$4} UPDATE_TOKENS=${UPDATE_TOKENS:-$5}
}
RECIPE=${RECIPE:-wmt14}
case $RECIPE in
wmt14) recipe 0.0005 10000 300000 0.1 131072 ;;
wmt16) recipe 0.001 4000 50000 0.2 65536 ;;
low_resource)
    ROLE=${ROLE:-ar_drafter} HEADS=${HEADS:-8}
    if [ "$ROLE" = verifier ]; then
        LAYERS=${LAYERS:-8} DROPOUT=${DROPOUT:-0.3}
    else
        LAYERS=${LAYERS:-4} EMBED_DIM=${EMBED_DIM:-256}
    fi
    recipe 0.001 4000 50000 0.2 16384
    ;;
*) fail "RECIPE must be wmt14, wmt16 or low_resource, not $RECIPE" ;;
esac
ROLE=${ROLE:-drafter}
MAX_TOKENS=${MAX_TOKENS:-4096}
LR_SCHEDULER=${LR_SCHEDULER:-inverse_sqrt} LABEL_SMOOTHING=${LABEL_SMOOTHING:-0.1} KD=${KD:-0}
CPU=${CPU:-0} SEED=${SEED:-1}
MAX_POSITIONS=${MAX_POSITIONS:-1000}
for variable in MAX_TOKENS UPDATE_TOKENS UPDATE_FREQ GPUS; do
    [[ ${!variable:-1} =~ ^[1-9][0-9]*$ ]] || fail "$variable must be a number above 0, not ${!variable}"
done

# How many processes train together (WORLD), which of them this one is (RANK), and what fairseq is told of it. fairseq itself starts
# a process for each GPU unless torchrun or SLURM have done so.
if [ "$CPU" = 1 ]; then
    GPUS=1
else
    GPUS=${GPUS:-$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')}
fi
RANK=${RANK:-0} INIT=tcp://localhost:$((10000 + RANDOM % 50000)) PROCESS=()
if [ -n "${TORCHELASTIC_RUN_ID:-}" ]; then # torchrun
    WORLD=$WORLD_SIZE INIT=env:// PROCESS=(--distributed-no-spawn --device-id "$LOCAL_RANK")
elif [ "${SLURM_STEP_NUM_TASKS:-1}" -gt 1 ]; then # srun, with more than one task
    RANK=$SLURM_PROCID WORLD=$SLURM_STEP_NUM_TASKS
    HOST=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_STEP_NODELIST" | sed -n 1p)}
    INIT=tcp://$HOST:${MASTER_PORT:-$((10000 + SLURM_JOB_ID % 50000))}
    if [ "$WORLD" = "$SLURM_STEP_NUM_NODES" ] && [ "$GPUS" -gt 1 ]; then
        RANK=$((RANK * GPUS)) WORLD=$((WORLD * GPUS))
    else
        PROCESS=(--distributed-no-spawn --device-id "$((SLURM_LOCALID % GPUS))")
    fi
else
    RANK=0 WORLD=$GPUS
fi
DISTRIBUTED=(--distributed-world-size "$WORLD")
if [ "$WORLD" -gt 1 ]; then
    DISTRIBUTED+=(--distributed-rank "$RANK" --distributed-init-method "$INIT" "${PROCESS[@]}")
    # what fairseq takes unless told otherwise is for GPUs
    [ "$CPU" != 1 ] || DISTRIBUTED+=(--distributed-backend gloo --ddp-backend legacy_ddp)
fi
# What one process does for all, and says for all.
first() {
    [ "$RANK" = 0 ]
}
say() {
    ! first || echo "train.sh: $*"
}

AT_ONCE=$((MAX_TOKENS * WORLD)) # target tokens
UPDATE_FREQ=${UPDATE_FREQ:-$(((UPDATE_TOKENS + AT_ONCE / 2) / AT_ONCE))}
[ "$UPDATE_FREQ" != 0 ] || UPDATE_FREQ=1

LAYERS=${LAYERS:-6} EMBED_DIM=${EMBED_DIM:-512}
ENCODER_LAYERS=${ENCODER_LAYERS:-$LAYERS} DECODER_LAYERS=${DECODER_LAYERS:-$LAYERS}
FFN_DIM=${FFN_DIM:-$((4 * EMBED_DIM))}
DECODER_FFN_DIM=${DECODER_FFN_DIM:-$FFN_DIM} HEADS=${HEADS:-$((EMBED_DIM < 64 ? 1 : EMBED_DIM / 64))}

NETWORK=(--encoder-layers "$ENCODER_LAYERS" --decoder-layers "$DECODER_LAYERS"
    --encoder-embed-dim "$EMBED_DIM" --decoder-embed-dim "$EMBED_DIM"
    --encoder-ffn-embed-dim "$FFN_DIM" --decoder-ffn-embed-dim "$DECODER_FFN_DIM"
    --encoder-attention-heads "$HEADS" --decoder-attention-heads "$HEADS"
    --max-source-positions "$MAX_POSITIONS" --max-target-positions "$MAX_POSITIONS"
    --encoder-learned-pos --decoder-learned-pos --activation-fn gelu --share-all-embeddings)

FLAGS=(--task translation_lev_modified
    --dropout "$DROPOUT" --weight-decay "${WEIGHT_DECAY:-0.01}"
    --optimizer adam --adam-betas "${ADAM_BETAS:-(0.9, 0.999)}" --adam-eps "${ADAM_EPS:-1e-6}" --clip-norm "${CLIP_NORM:-5}"
    --lr "$LR" --lr-scheduler "$LR_SCHEDULER" --warmup-updates "$WARMUP"
    --max-update "$MAX_UPDATE" --max-tokens "$MAX_TOKENS" --update-freq "$UPDATE_FREQ"
    --seed "$SEED" --keep-last-epochs "${KEEP:-10}" --log-format simple --log-interval "${LOG_INTERVAL:-100}")

case $LR_SCHEDULER in
inverse_sqrt) FLAGS+=(--warmup-init-lr 1e-7 --stop-min-lr 1e-9) ;;
polynomial_decay) FLAGS+=(--total-num-update "$MAX_UPDATE") ;;
esac

[ "$KD" = 0 ] || [ "$ROLE" = ar_drafter ] || fail "KD is for ROLE=ar_drafter; leave it out with ROLE=$ROLE"
FREEZE=()
[ "${FREEZE_ENCODER:-0}" = 0 ] || FREEZE=(--freeze-encoder)
case $ROLE in
drafter)
    INIT_ARCH=block
    NETWORK+=(--src-embedding-copy --apply-bert-init "${FREEZE[@]}")
    FLAGS+=(--arch "${ARCH:-block_6e6d512}" --criterion glat_loss --label-smoothing "$LABEL_SMOOTHING"
        --noise block_mask --block-size "${BLOCK:-25}"
        --blocks-per-sentence "${BLOCKS_PER_SENTENCE:-1}" --start-p "${START_P:-0.5}" --minus-p "${MINUS_P:-0.2}" --total-up "${TOTAL_UP:-$MAX_UPDATE}")
    ;;
ar_drafter)
    INIT_ARCH=transformer_drafter
    NETWORK+=(--no-scale-embedding "${FREEZE[@]}")
    FLAGS+=(--arch "${ARCH:-transformer_drafter}" --noise no_noise)
    if [ "$KD" = 1 ]; then
        need VERIFIER "the verifier's checkpoint (with KD=1)"
        need_file "$VERIFIER" "the verifier (VERIFIER)"
        FLAGS+=(--criterion kd_loss --kd-AR-path "$VERIFIER")
    else
        FLAGS+=(--criterion label_smoothed_cross_entropy --label-smoothing "$LABEL_SMOOTHING")
    fi
    ;;
verifier)
    [ ${#FREEZE[@]} = 0 ] || fail "FREEZE_ENCODER is for drafters; leave it out with ROLE=verifier"
    [ -z "${VALID_VERIFIER:-}" ] || fail "VALID_VERIFIER is for drafters; leave it out with ROLE=verifier"
    # Positions, activation and the scale of the embeddings are the drafter's, so that it can start from these weights.
    NETWORK+=(--no-scale-embedding)
    FLAGS+=(--arch "${ARCH:-transformer}" --noise no_noise
        --criterion label_smoothed_cross_entropy --label-smoothing "$LABEL_SMOOTHING")
    ;;
*) fail "ROLE must be drafter, ar_drafter or verifier, not $ROLE" ;;
esac

if [ -n "${SRC:-}" ] && [ -n "${TGT:-}" ]; then
    FLAGS+=(--source-lang "$SRC" --target-lang "$TGT")
fi
if [ -n "${SAVE_INTERVAL_UPDATES:-}" ]; then
    FLAGS+=(--save-interval-updates "$SAVE_INTERVAL_UPDATES" --keep-interval-updates "${KEEP:-10}")
fi
# A training that goes on needs no VERIFIER, so it may be gone; one that is asked for by name must be there.
if [ -z "${VALID_VERIFIER+given}" ] && [ "$ROLE" != verifier ] && [ -f "${VERIFIER:-}" ]; then
    VALID_VERIFIER=$VERIFIER
fi
if [ -n "${VALID_VERIFIER:-}" ]; then
    need_file "$VALID_VERIFIER" "the verifier for validation (VALID_VERIFIER)"
    FLAGS+=(--valid-AR-path "$VALID_VERIFIER" --valid-lines "${VALID_LINES:-200}")
fi
if [ -n "${TENSORBOARD:-}" ]; then
    FLAGS+=(--tensorboard-logdir "$TENSORBOARD")
fi
if [ "$CPU" = 1 ]; then
    FLAGS+=(--cpu)
    [ -z "${CPU_AUTOCAST:-}" ] || FLAGS+=(--cpu-autocast "$CPU_AUTOCAST")
elif [ "${FP16:-1}" = 1 ]; then
    FLAGS+=(--fp16)
fi

mkdir -p "$SAVE_DIR" || fail "the folder for the checkpoints (SAVE_DIR) $SAVE_DIR can't be made"
LAST=$SAVE_DIR/checkpoint_last.pt
! first || mend_last "$SAVE_DIR"

if [ -e "$LAST" ]; then
    say "going on from $LAST"
elif [ -n "${VERIFIER:-}" ]; then
    [ "$ROLE" != verifier ] || fail "VERIFIER is what a drafter starts from; leave it out with ROLE=$ROLE"
    need_file "$VERIFIER" "the verifier (VERIFIER)"
    if first; then
        python "$ROOT/scripts/init_drafter.py" "$VERIFIER" "$SAVE_DIR/initial.pt" \
            --arch "$INIT_ARCH" --parts "${INIT_PARTS:-encoder}" --seed "$SEED" "${NETWORK[@]}" > "$SAVE_DIR/initial.txt"
        SUMMARY=$(head -n 1 "$SAVE_DIR/initial.txt")
        say "$SUMMARY; all of it in $SAVE_DIR/initial.txt"
        [[ $SUMMARY != "0 of "* ]] ||
            fail "no weight of $VERIFIER fits this drafter: set EMBED_DIM, FFN_DIM and LAYERS as for the verifier"
    fi
    FLAGS+=(--restore-file "$SAVE_DIR/initial.pt"
        --reset-optimizer --reset-meters --reset-lr-scheduler --reset-dataloader)
fi

DEVICES=GPUs
[ "$CPU" != 1 ] || DEVICES=processes
say "$ROLE: $((AT_ONCE * UPDATE_FREQ)) target tokens an update at most ($DEVICES: $WORLD, batches on each: $UPDATE_FREQ, tokens of a" \
    "batch: $MAX_TOKENS); wanted: $UPDATE_TOKENS"
exec fairseq-train "$DATA" --user-dir "$ROOT/block_plugins" --save-dir "$SAVE_DIR" "${NETWORK[@]}" "${FLAGS[@]}" \
    "${DISTRIBUTED[@]}" "$@"
