#!/usr/bin/env bash
# Translates a test set with a verifier and its drafter in five ways, shows line by line that beta 1 changes nothing, what each way is
# worth, and one sentence while it is decoded.
#
#   scripts/demo.sh
#
# Without any of the first four, the models are the bundled pair, checkpoints/demo.en-de, and run on the CPU unless CPU=0 is given.
# DATA       folder with the dictionaries (dict.SRC.txt, dict.TGT.txt)
# CODES      the BPE codes
# VERIFIER   checkpoint of the verifier
# DRAFTER    checkpoint of the drafter
# SRC, TGT   languages (en, de)
# DEMO_TEXT  folder with raw text, test.SRC and test.TGT (data/demo.en-de)
# DEMO_DIR   folder for translations, statistics, logs and the trace (runs/demo in the checkout)
# DEMO_BATCH   sentences decoded together (1)
# DEMO_SENTENCE   the sentence that is shown, by its number from 0 (0; of the bundled text 25)
# BLOCK, DRAFT_TOKENS, DRAFTER_DTYPE, CPU, FP16, BF16 and PYTHON_BIN are variables as for inference.sh.
#
# Ends with status 1 where AR and GAD with beta 1 differ in a line.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

DEMO_BATCH=${DEMO_BATCH:-1}
need_batch DEMO_BATCH
export SRC=${SRC:-en} TGT=${TGT:-de} BATCH=$DEMO_BATCH
OUT=${DEMO_DIR:-$ROOT/runs/demo}
if [ -n "${DEMO_TEXT:-}" ]; then
    TEXT=$DEMO_TEXT SENTENCE=${DEMO_SENTENCE:-0}
else
    TEXT=$ROOT/data/demo.en-de SENTENCE=${DEMO_SENTENCE:-25}
fi
need_models
export DATA VERIFIER DRAFTER BLOCK DRAFT_TOKENS CPU MAX_LEN_A=2 MAX_LEN_B=10
need_file "$TEXT/test.$SRC" "the text (DEMO_TEXT)"
need_file "$TEXT/test.$TGT" "its translation (DEMO_TEXT)"
same_lines "$TEXT/test.$SRC" "$TEXT/test.$TGT" "the text and its translation"
for command in sacremoses subword-nmt fairseq-interactive; do
    need_fairseq "$command"
done
mkdir -p "$OUT" || fail "the folder for what is written (DEMO_DIR) $OUT can't be made"
trap 'echo; exit 130' INT

for language in "$SRC" "$TGT"; do
    tokenise "$language" < "$TEXT/test.$language" > "$OUT/test.tok.$language"
done
subword-nmt apply-bpe -c "$CODES" < "$OUT/test.tok.$SRC" > "$OUT/test.bpe.$SRC"

compound_split < "$OUT/test.tok.$TGT" > "$OUT/reference.split"

# decode NAME VARIABLE=VALUE ...: the name of what is written, and what inference.sh is told
decode() {
    local name=$1
    shift
    echo "decoding $(grep -c '' "$OUT/test.bpe.$SRC") lines, $BATCH at a time: $*"
    env -u DRAFTER_DTYPE "$@" INPUT="$OUT/test.bpe.$SRC" OUTPUT="$OUT/$name.$TGT" STATS="$OUT/$name.json" LOG="$OUT/$name.log" "$ROOT/inference.sh" \
        "${MORE[@]}" 2> "$OUT/$name.errors" || {
        cat "$OUT/$name.errors" >&2
        exit 1
    }
    compound_split < "$OUT/$name.$TGT" > "$OUT/$name.split"
}
MORE=() PRECISION=DRAFTER_DTYPE=${DRAFTER_DTYPE:-same} # which the strategies without a drafter refuse
decode beam1 STRATEGY=fairseq BEAM=1
decode ar STRATEGY=AR
decode gad-beta1 STRATEGY=gad "$PRECISION" BETA=1 TAU=0
decode gad-beta5 STRATEGY=gad "$PRECISION" BETA=5 TAU=3.0
MORE=(--trace-path "$OUT/trace.jsonl")
decode gad-whole STRATEGY=gad "$PRECISION" BETA=1 TAU=0 LOOKAHEAD=constant

echo
python "$ROOT/scripts/show_trace.py" "$OUT/trace.jsonl" --sentence "$SENTENCE"
echo
python "$ROOT/scripts/demo_table.py" "$OUT" "$TGT" "$TEXT/test.$TGT"
