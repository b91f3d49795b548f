#!/usr/bin/env bash
# The recipe for pairs of languages with 100 to 300 thousand pairs of sentences, from raw parallel text to a table of results: two
# translation models that train each other by reconstruction, and a small drafter for each, distilled from it.
#
#   scripts/low_resource.sh SRC TGT TEXT_DIR [--preset cpu|gpu] [--out OUT] [--ablations] [-- FLAG ...]
#
# TEXT_DIR     {train,valid,test}.{SRC,TGT}, raw UTF-8 text, one segment a line
# --preset     cpu (default): models and training small enough for two cores and two hours; gpu: verifiers of 8 + 8 layers, d 512,
#              drafters of 4 + 4 layers, d 256, 40 thousand updates in half precision
# --out        folder for everything (low_resource.SRC-TGT)
# --ablations  trains three more, each like the dual one but for one thing: without reconstruction, without distillation, with one
#              table of embeddings for both directions
# FLAG ...     for every training, after the preset's: fairseq-train's, and those of --arch dual_transformer, --task dual_translation
#              and --criterion dual_reconstruction_loss
#
# OUT receives, in this order, and a step whose result is there is skipped, so that the same command goes on after an interruption:
#   clean/       TEXT_DIR without what scripts/clean_corpus.py drops, and its report
#   data/        what scripts/preprocess.sh makes of it
#   warmup/      the first stage: cross entropy alone (DUAL_WARMUP updates)
#   plain/       from there to MAX_UPDATE updates with cross entropy alone: what dual training is compared with
#   dual/        from there to MAX_UPDATE updates with reconstruction and distillation; in plain/ and dual/ also the four models,
#                {forward,backward}-{verifier,drafter}.pt, for fairseq-generate
#   no-reconstruction/, no-distillation/, shared-embeddings/   the ablations
#   table.md, table.json   BLEU, chrF, alpha and speed in both directions (benchmarks/low_resource.py); with ablations
#                table-with-ablations.md and .json
#   times.txt    what each step took, in seconds
#
# BPE_SYMBOLS, DUAL_WARMUP, MAX_UPDATE, VALIDATE   merges of the joint BPE; updates of the first stage, of both, and between two
#              validations (cpu: 4000, 2000, 2500, 250; gpu: 8000, 16000, 40000, 1000)
# REC_WEIGHT, KD_WEIGHT   weights of reconstruction and distillation (0.2, 0.1)
# BATCH, PASSES   of the table: sentences decoded together (32), timed passes (3)
# PYTHON_BIN   folder with fairseq's commands (default: the active environment, else .venv)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} # whose import lets torch.load read fairseq's checkpoints

help_if_asked "$@"

POSITIONAL=() PRESET=cpu OUT='' ABLATIONS=()
while [ $# -gt 0 ]; do
    case $1 in
    --preset | --out)
        [ $# -gt 1 ] || fail "$1 needs a value"
        if [ "$1" = --out ]; then OUT=$2; else PRESET=$2; fi
        shift
        ;;
    --ablations) ABLATIONS=(no-reconstruction no-distillation shared-embeddings) ;;
    --)
        shift
        break
        ;;
    -*) fail "there is no option $1; flags for the trainings come after --" ;;
    *) POSITIONAL+=("$1") ;;
    esac
    shift
done
EXTRA=("$@")
for flag in "${EXTRA[@]}"; do
    case ${flag%%=*} in
    --save-dir | --max-update | --restore-file | --dual-warmup-updates | --rec-weight | --rec-weight-min | --kd-weight | \
        --share-dual-embeddings | --source-lang | --target-lang | -s | -t)
        fail "$flag differs from training to training here, so it can't be a flag for all: see the variables (--help)"
        ;;
    esac
done
if [ ${#POSITIONAL[@]} -ne 3 ]; then
    usage >&2
    exit 2
fi
SRC=${POSITIONAL[0]} TGT=${POSITIONAL[1]} TEXT=${POSITIONAL[2]}
OUT=${OUT:-low_resource.$SRC-$TGT}
[ "$SRC" != "$TGT" ] || fail "SRC and TGT are the same language, $SRC"
need_folder "$TEXT" "the folder with the text,"
for split in train valid test; do
    for lang in "$SRC" "$TGT"; do
        need_file "$TEXT/$split.$lang" "the text"
    done
    need_equal_lengths "$TEXT/$split.$SRC" "$TEXT/$split.$TGT" "$TEXT/$split.$SRC and $split.$TGT"
done
need_fairseq fairseq-train

# preset BPE_SYMBOLS DUAL_WARMUP MAX_UPDATE VALIDATE: what isn't set yet
preset() {
    BPE_SYMBOLS=${BPE_SYMBOLS:-$1} DUAL_WARMUP=${DUAL_WARMUP:-$2} MAX_UPDATE=${MAX_UPDATE:-$3} VALIDATE=${VALIDATE:-$4}
}
case $PRESET in
cpu)
    preset 4000 2000 2500 250
    # small batches, for the sake of more updates; no dropout, for no sentence is seen more than a few times
    FLAGS=(--cpu --dropout 0
        --verifier-embed-dim 192 --verifier-encoder-layers 3 --verifier-decoder-layers 2 --verifier-attention-heads 4
        --drafter-embed-dim 128 --drafter-encoder-layers 2 --drafter-decoder-layers 1 --drafter-attention-heads 4
        --max-tokens 1500 --lr 0.0015 --lr-scheduler polynomial_decay --total-num-update "$MAX_UPDATE" --warmup-updates 300)
    ;;
gpu)
    python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || fail "--preset gpu: there is no GPU that PyTorch can use"
    preset 8000 16000 40000 1000
    FLAGS=(--fp16 --max-tokens 8192 --lr 0.0005 --lr-scheduler inverse_sqrt --warmup-updates 4000)
    ;;
*) fail "--preset must be cpu or gpu, not $PRESET" ;;
esac
BATCH=${BATCH:-32} PASSES=${PASSES:-3} REC_WEIGHT=${REC_WEIGHT:-0.2} KD_WEIGHT=${KD_WEIGHT:-0.1}
for variable in BPE_SYMBOLS DUAL_WARMUP MAX_UPDATE VALIDATE BATCH PASSES; do
    [[ ${!variable} =~ ^[1-9][0-9]*$ ]] || fail "$variable must be a number above 0, not ${!variable}"
done
for variable in REC_WEIGHT KD_WEIGHT; do
    is_positive "${!variable}" || fail "$variable must be above 0, not ${!variable}"
done
[ "$DUAL_WARMUP" -lt "$MAX_UPDATE" ] || fail "DUAL_WARMUP, $DUAL_WARMUP, must be below MAX_UPDATE, $MAX_UPDATE"
FLAGS+=(--user-dir "$ROOT/block_plugins" --task dual_translation --source-lang "$SRC" --target-lang "$TGT"
    --arch dual_transformer --criterion dual_reconstruction_loss --label-smoothing 0.1
    --max-source-positions 256 --max-target-positions 256 --skip-invalid-size-inputs-valid-test
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1 --seed 1 --num-workers 0
    --validate-interval-updates "$VALIDATE" --save-interval-updates "$VALIDATE" --keep-interval-updates 1
    --validate-interval 1000000 --save-interval 1000000 --no-epoch-checkpoints
    --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --eval-bleu-detok moses --eval-bleu-remove-bpe
    --log-format simple --log-interval 50 "${EXTRA[@]}")

trap 'echo; echo "low_resource.sh: stopped; the same command goes on from here" >&2; exit 130' INT
mkdir -p "$OUT" || fail "the folder for everything (--out) $OUT can't be made"

same_settings "$OUT/settings" "$(cat "$TEXT"/{train,valid,test}.{"$SRC","$TGT"} | cksum) $BPE_SYMBOLS" \
    "$OUT was made from other text or with another BPE_SYMBOLS: give another --out, or remove it"

# step NAME COMMAND ...: says what begins, and writes down how long it took
step() {
    local start=$SECONDS
    printf '\n== %s  %s\n' "$(date +%H:%M:%S)" "$1"
    "${@:2}"
    echo "$1: $((SECONDS - start))" >> "$OUT/times.txt"
}

clean() {
    rm -rf "$OUT/clean.tmp"
    mkdir "$OUT/clean.tmp"
    cp "$TEXT"/valid."$SRC" "$TEXT"/valid."$TGT" "$TEXT"/test."$SRC" "$TEXT"/test."$TGT" "$OUT/clean.tmp/"
    python "$ROOT/scripts/clean_corpus.py" "$TEXT/train.$SRC" "$TEXT/train.$TGT" "$OUT/clean.tmp/train" \
        --report "$OUT/clean.tmp/report.json" --exclude "$TEXT"/{valid,test}.{"$SRC","$TGT"}
    mv "$OUT/clean.tmp" "$OUT/clean"
}

# train_once NAME UPDATES FLAG ...: goes on from what is there
train_once() {
    local folder=$OUT/$1 updates=0
    mkdir -p "$folder"
    # flags that no training has got through with may be changed
    [ -e "$folder/checkpoint_last.pt" ] || rm -f "$folder/flags"
    same_settings "$folder/flags" "${FLAGS[*]} ${*:3}" \
        "$folder was trained with other flags: give another --out, or remove it and what comes after it"
    if [ -e "$folder/done-$2" ]; then
        echo "trained already: $folder"
        return
    fi
    mend_last "$folder"
    [ ! -e "$folder/checkpoint_last.pt" ] || updates=$(updates_of "$folder/checkpoint_last.pt")
    [ "$updates" -le "$2" ] || fail "$folder has had $updates updates already, more than $2: raise MAX_UPDATE, or give another --out"
    if [ "$updates" = "$2" ]; then # interrupted after its last checkpoint
        touch "$folder/done-$2"
    else
        step "training $1" train_with_progress "$1" "$2" "$folder" \
            fairseq-train "$OUT/data/bin" --save-dir "$folder" "${FLAGS[@]}" --max-update "$2" "${@:3}"
    fi
}
updates_of() {
    python -c 'import sys, torch; import block_plugins
print(torch.load(sys.argv[1], map_location="cpu", mmap=True)["optimizer_history"][-1]["num_updates"])' "$1"
}
# second_stage NAME REC_WEIGHT KD_WEIGHT: from the end of the first stage, whose best score doesn't count
second_stage() {
    if [ ! -e "$OUT/$1/checkpoint_last.pt" ]; then
        mkdir -p "$OUT/$1"
        python -c 'import sys, torch; import block_plugins
state = torch.load(sys.argv[1], map_location="cpu")
state["extra_state"].pop("best", None)
torch.save(state, sys.argv[2])' "$OUT/warmup/checkpoint_last.pt" "$OUT/$1/first_stage.tmp"
        mv "$OUT/$1/first_stage.tmp" "$OUT/$1/checkpoint_last.pt"
        rm -f "$OUT/$1/flags"
    fi
    train_once "$1" "$MAX_UPDATE" --dual-warmup-updates "$DUAL_WARMUP" --rec-weight "$2" \
        --rec-weight-min "$(least "$2")" --kd-weight "$3"
}
# least WEIGHT: where its halving ends
least() {
    awk -v weight="$1" 'BEGIN { print weight < 0.05 ? weight : 0.05 }'
}
# models NAME: the four models of a training, of its best validation
models() {
    local checkpoint=$OUT/$1/checkpoint_best.pt
    [ -e "$checkpoint" ] && is_whole "$checkpoint" || checkpoint=$OUT/$1/checkpoint_last.pt
    [ "$OUT/$1/backward-drafter.pt" -nt "$checkpoint" ] || # which is written last
        python "$ROOT/scripts/export_dual.py" "$checkpoint" \
            --component forward-verifier backward-verifier forward-drafter backward-drafter
}

if [ ! -e "$OUT/clean" ]; then
    step "cleaning $TEXT" clean
fi
if [ ! -e "$OUT/data/bin" ]; then
    BPE_SYMBOLS=$BPE_SYMBOLS TAGS="<BT>" step "preprocessing" preprocess_text "$SRC" "$TGT" "$OUT/clean" "$OUT/data" "$OUT/preprocess.log"
fi
train_once warmup "$DUAL_WARMUP" --dual-warmup-updates "$DUAL_WARMUP"
second_stage plain 0 0
second_stage dual "$REC_WEIGHT" "$KD_WEIGHT"
for ablation in "${ABLATIONS[@]}"; do
    case $ablation in
    no-reconstruction) second_stage "$ablation" 0 "$KD_WEIGHT" ;;
    no-distillation) second_stage "$ablation" "$REC_WEIGHT" 0 ;;
    shared-embeddings)
        train_once "$ablation" "$MAX_UPDATE" --dual-warmup-updates "$DUAL_WARMUP" --rec-weight "$REC_WEIGHT" \
            --rec-weight-min "$(least "$REC_WEIGHT")" --kd-weight "$KD_WEIGHT" --share-dual-embeddings
        ;;
    esac
done

TABLE=$OUT/table${ABLATIONS:+-with-ablations}.md
COMPARED=(--plain "$OUT/plain" --dual "$OUT/dual" ${ABLATIONS:+--ablation})
for name in "${ABLATIONS[@]}"; do
    COMPARED+=("$name=$OUT/$name")
done
for name in plain dual "${ABLATIONS[@]}"; do
    models "$name"
    [ "$TABLE" -nt "$OUT/$name/backward-drafter.pt" ] || rm -f "$TABLE"
done
if [ ! -e "$TABLE" ]; then
    step "the table" python -W ignore "$ROOT/benchmarks/low_resource.py" "$OUT/data/bin" --source-lang "$SRC" --target-lang "$TGT" \
        "${COMPARED[@]}" --reference "$OUT/clean/test" --batch "$BATCH" --passes "$PASSES" --output "$TABLE"
else
    cat "$TABLE"
fi
