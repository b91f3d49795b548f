#!/usr/bin/env bash
# Sequence-level knowledge distillation (Kim and Rush 2016): the training sources with the verifier's own translations, which is
# what a drafter has to predict.
#
#   DATA=bin VERIFIER=verifier.pt OUT=distilled scripts/distill.sh [fairseq-generate's flags ...]
#
# DATA       folder that fairseq-preprocess wrote;  SRC, TGT  its languages (default: what the folder holds)
# VERIFIER   checkpoint of the verifier
# MONO       more text in SRC, one sentence a line, BPE-encoded with the codes that go with DATA, whose translations are added;
#            scripts/recombine.py makes some where there is none. It can be given later on as well.
# OUT        folder: shards/ (what fairseq-generate printed), train.SRC and train.TGT (BPE), report.txt, bin/ (data for train.sh: the
#            distilled training set, with DATA's other sets and dictionaries); more/, the same of MONO
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
. "$ROOT/scripts/shards.sh"
if [ -z "${SRC:-}" ] || [ -z "${TGT:-}" ]; then
    FOUND=("$DATA"/train.*-*.*.idx)
    [ -e "${FOUND[0]}" ] || fail "$DATA has no training set: give the folder that fairseq-preprocess wrote"
    PAIR=$(basename "${FOUND[0]}" | cut -d. -f2)
    SRC=${PAIR%-*} TGT=${PAIR#*-}
fi
PAIR=$SRC-$TGT MONO=${MONO:-}
[ -z "$MONO" ] || need_file "$MONO" "the text to add (MONO)"
[ -e "$DATA/train.$PAIR.$SRC.idx" ] || fail "$DATA has no training set $PAIR"

trap 'echo "distill.sh: interrupted; the same command goes on from here" >&2; exit 130' INT
begin_translations "$DATA/train.$PAIR.$SRC.bin" "$VERIFIER" "$@"
translate_in_shards "$DATA" "$SRC" "$TGT" "$VERIFIER" "$@"
if [ -n "$MONO" ]; then
    (
        OUT=$OUT/more
        translate_mono "$SRC" "$TGT" "$VERIFIER" "$@"
    )
fi
[ -z "$SHARD" ] || exit 0

MADE_OF="$(cat "$OUT/shards/settings" ${MONO:+"$OUT/more/shards/settings"}) $SHARDS ${FILTER:-1}"
if [ -d "$OUT/bin" ] && [ "$(cat "$OUT/made_of" 2> /dev/null)" = "$MADE_OF" ]; then
    echo "distilled already; data for train.sh: $OUT/bin"
    exit 0
fi

# write_text DATA: OUT/train.SRC and train.TGT, the training sources of DATA and their translations
write_text() {
    translations
    python "$ROOT/scripts/distilled_text.py" "${TRANSLATIONS[@]}" --sentences "$(sentences_of "$1/train.$PAIR.$SRC")" \
        --source "$OUT/train.$SRC" --target "$OUT/train.$TGT" | tee "$OUT/report.txt"
}
write_text "$DATA"
if [ -n "$MONO" ]; then
    (
        OUT=$OUT/more
        write_text "$OUT/mono"
    )
    cat "$OUT/more/train.$SRC" >> "$OUT/train.$SRC"
    cat "$OUT/more/train.$TGT" >> "$OUT/train.$TGT"
fi
rm -f "$OUT/made_of"
binarise_with_sets_of "$DATA" "$DATA/dict.$SRC.txt" "$DATA/dict.$TGT.txt"
echo "$MADE_OF" > "$OUT/made_of"
echo "data for train.sh: $OUT/bin"
