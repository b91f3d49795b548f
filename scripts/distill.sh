#!/usr/bin/env bash
# Sequence-level knowledge distillation (Kim and Rush 2016): the training sources with the verifier's own translations, which is
# what a drafter has to predict.
#
#   DATA=bin VERIFIER=verifier.pt OUT=distilled scripts/distill.sh [fairseq-generate's flags ...]
#
# DATA       folder that fairseq-preprocess wrote;  SRC, TGT  its languages (default: what the folder holds)
# VERIFIER   checkpoint of the verifier
# OUT        folder: shards/ (what fairseq-generate printed), train.SRC and train.TGT (BPE), report.txt, bin/ (data for train.sh: the
#            distilled training set, with DATA's other sets and dictionaries)
# STRATEGY   AR (default: what beta 1 has to match), left2right or fairseq;  BEAM  beams of these two (5)
# SHARDS     parts that the training set is translated in (8): an interrupted run goes on with the first part that isn't there
# SHARD      translates this part alone, on a machine or processor of its own; the last to finish runs the command without it
# BATCH, MAX_TOKENS   sentences and tokens of a batch (200, 9000)
# FILTER=0   keeps degenerate translations (repetitive ones, or such as ran on to the length limit) as well
# MAX_LEN_A, MAX_LEN_B   longest translation: A * source length + B tokens (1.5, 10)
# CPU=1      translates on the CPU;  FP16=1  in half precision (GPU only)
# PYTHON_BIN folder with fairseq's commands (default: the active environment, else .venv)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

need DATA "the folder that fairseq-preprocess wrote"
need VERIFIER "the verifier's checkpoint"
need OUT "the folder for the distilled data"
need_folder "$DATA" "the data folder (DATA)"
need_file "$VERIFIER" "the verifier (VERIFIER)"
need_fairseq fairseq-generate
STRATEGY=${STRATEGY:-AR} SHARDS=${SHARDS:-8} SHARD=${SHARD:-}
[[ $SHARDS =~ ^[1-9][0-9]*$ ]] || fail "SHARDS must be a number of parts, at least 1, not $SHARDS"
if [ -n "$SHARD" ] && ! { [[ $SHARD =~ ^[0-9]+$ ]] && [ "$SHARD" -lt "$SHARDS" ]; }; then
    fail "SHARD must be one of 0 ... $((SHARDS - 1)), not $SHARD"
fi
case $STRATEGY in
AR) BEAM=1 ;;
left2right | fairseq) BEAM=${BEAM:-5} ;;
*) fail "STRATEGY must be AR, left2right or fairseq, not $STRATEGY" ;;
esac
if [ -z "${SRC:-}" ] || [ -z "${TGT:-}" ]; then
    FOUND=("$DATA"/train.*-*.*.idx)
    [ -e "${FOUND[0]}" ] || fail "$DATA has no training set: give the folder that fairseq-preprocess wrote"
    PAIR=$(basename "${FOUND[0]}" | cut -d. -f2)
    SRC=${PAIR%-*} TGT=${PAIR#*-}
fi
PAIR=$SRC-$TGT
[ -e "$DATA/train.$PAIR.$SRC.idx" ] || fail "$DATA has no training set $PAIR"

FLAGS=(--source-lang "$SRC" --target-lang "$TGT" --strategy "$STRATEGY" --beam "$BEAM" --path "$VERIFIER" --gen-subset train
    --batch-size "${BATCH:-200}" --max-tokens "${MAX_TOKENS:-9000}" --num-workers 0
    --max-len-a "${MAX_LEN_A:-1.5}" --max-len-b "${MAX_LEN_B:-10}" --skip-invalid-size-inputs-valid-test)
[ "${CPU:-0}" != 1 ] || FLAGS+=(--cpu)
[ "${FP16:-0}" != 1 ] || FLAGS+=(--fp16)

mkdir -p "$OUT/shards" || fail "the folder for the distilled data (OUT) $OUT can't be made"
trap 'echo "distill.sh: interrupted; the same command goes on from here" >&2; exit 130' INT

translate() { # SHARD
    local log=$OUT/shards/$1-of-$SHARDS.txt
    if [ -e "$log" ]; then
        echo "translated already: $log"
        return
    fi
    echo "translating part $(($1 + 1)) of $SHARDS"
    fairseq-generate "$DATA" --user-dir "$ROOT/block_plugins" --task translation_lev_modified "${FLAGS[@]}" \
        --num-shards "$SHARDS" --shard-id "$1" "${@:2}" > "$log.tmp" 2> "$log.errors" || {
        grep -h '^error: ' "$log.tmp" "$log.errors" | tail -n 1 >&2 || tail -n 1 "$log.errors" >&2
        fail "part $1 of $SHARDS failed; all of it in $log.errors"
    }
    mv "$log.tmp" "$log"
    # fairseq says in each part how many sentences of the whole set are too long for the model
    sed -n 's/,//g; s/^.*[ :]\([0-9][0-9]*\) samples have invalid sizes and will be skipped.*/\1/p' "$log.errors" |
        head -n 1 > "$OUT/shards/skipped"
    rm "$log.errors"
}

if [ -n "$SHARD" ]; then
    translate "$SHARD" "$@"
    exit 0
fi
for ((shard = 0; shard < SHARDS; shard++)); do
    translate "$shard" "$@"
done

if [ ! -d "$OUT/bin" ]; then
    SENTENCES=$(python -c 'import sys; from fairseq.data import indexed_dataset as data
print(len(data.make_dataset(sys.argv[1], "mmap")))' "$DATA/train.$PAIR.$SRC" 2> /dev/null) ||
        fail "the training set of $DATA can't be read"
    SKIPPED=$(cat "$OUT/shards/skipped")
    KEEP=()
    [ "${FILTER:-1}" = 1 ] || KEEP=(--keep-degenerate)
    python "$ROOT/scripts/distilled_text.py" "${KEEP[@]}" "$OUT/shards/"*"-of-$SHARDS.txt" --sentences "$SENTENCES" --skipped "${SKIPPED:-0}" \
        --max-len-a "${MAX_LEN_A:-1.5}" --max-len-b "${MAX_LEN_B:-10}" --source "$OUT/train.$SRC" --target "$OUT/train.$TGT" |
        tee "$OUT/report.txt"
    rm -rf "$OUT/bin.tmp"
    fairseq-preprocess --source-lang "$SRC" --target-lang "$TGT" --srcdict "$DATA/dict.$SRC.txt" \
        --tgtdict "$DATA/dict.$TGT.txt" --trainpref "$OUT/train" --destdir "$OUT/bin.tmp" > "$OUT/preprocess.txt" 2>&1 ||
        fail "fairseq-preprocess failed; all of it in $OUT/preprocess.txt"
    for file in "$DATA"/valid*."$PAIR".* "$DATA"/test*."$PAIR".*; do
        [ ! -e "$file" ] || cp "$file" "$OUT/bin.tmp/"
    done
    mv "$OUT/bin.tmp" "$OUT/bin"
fi
echo "data for train.sh: $OUT/bin"
