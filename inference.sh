#!/usr/bin/env bash
# Translates a BPE-encoded file: one line in, one line out, BPE removed.
#
#   DATA=bin DRAFTER=drafter.pt VERIFIER=verifier.pt INPUT=test.bpe.en OUTPUT=test.de ./inference.sh [fairseq's flags ...]
#
# DATA       folder with the dictionaries (dict.SRC.txt, dict.TGT.txt)
# SRC, TGT   languages (default: en, de)
# DRAFTER    checkpoint of the drafter, for the strategies gad and drafter
# VERIFIER   checkpoint of the verifier, for the strategies gad, AR, left2right and fairseq
# INPUT      source text, BPE-encoded, one sentence a line
# OUTPUT     appears when the last line is translated
# STRATEGY   gad (default), AR, left2right, fairseq or drafter
# BETA, TAU  a draft token is kept if it is among the verifier's BETA best (5) and within TAU of its best (3.0); with BETA=1 TAU=0
#            the text is the verifier's own
# BLOCK, DRAFT_TOKENS   tokens that a block drafter (25) and an autoregressive one (5) propose at once
# BATCH      sentences decoded together (32)
# BEAM       beam of the strategies fairseq and left2right (5)
# LOOKAHEAD  how much of a block is verified: auto (as much as pays, with BETA=1) or constant (all)
# DRAFTER_DTYPE   precision of the drafter: same (as the verifier's), fp32, bf16, int8 (CPU)
# CUDA_GRAPHS=1   launches the decoders' layers as CUDA graphs (GPU; not tried on one yet)
# MAX_LEN_A, MAX_LEN_B   at most A * source length + B tokens (fairseq's defaults: 0, 200)
# STATS      file for the statistics of decoding, JSON
# LOG        file for all that fairseq prints
# BUFFER     lines read and sorted by length before batches are made (2000)
# CPU=1      decodes on the CPU;  FP16=1  in half precision (GPU only);  BF16=1  in bfloat16
# PYTHON_BIN folder with fairseq's commands (default: the active environment, else .venv)
#
# A line that is longer than the models' positions stops the run; with --skip-invalid-size-inputs-valid-test its translation is an
# empty line.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

SRC=${SRC:-en} TGT=${TGT:-de}
STRATEGY=${STRATEGY:-gad}
BETA=${BETA:-5} TAU=${TAU:-3.0} BATCH=${BATCH:-32} BUFFER=${BUFFER:-2000}
need_batch BATCH
[[ $BUFFER =~ ^[1-9][0-9]*$ ]] || fail "BUFFER must be a number of lines, at least 1, not $BUFFER"
[ "$BUFFER" -ge "$BATCH" ] || BUFFER=$BATCH

need DATA "the folder with the dictionaries"
need INPUT "the BPE-encoded source text"
need OUTPUT "the file for the translation"
need_folder "$DATA" "the folder with the dictionaries (DATA)"
need_file "$INPUT" "the source text (INPUT)"
need_folder "$(dirname "$OUTPUT")" "the folder for the translation (OUTPUT)"

decoding_flags
need_fairseq fairseq-interactive

WORK=$(mktemp -d)
PARTIAL=$OUTPUT.tmp$$
trap 'rm -rf "$WORK" "$PARTIAL"' EXIT

LINES_IN=$(python "$ROOT/scripts/source_lines.py" "$INPUT" "$WORK/source")
set +e
PYTHONUNBUFFERED=1 fairseq-interactive "$DATA" --user-dir "$ROOT/block_plugins" --task translation_lev_modified \
    --source-lang "$SRC" --target-lang "$TGT" --input "$WORK/source" --buffer-size "$BUFFER" --batch-size "$BATCH" \
    --remove-bpe "${FLAGS[@]}" "$@" 2> "$WORK/errors" |
    awk -v total="$LINES_IN" -v step="$BUFFER" '
        /^D-/ && ++done % step == 0 { print done " of " total " lines" > "/dev/stderr" }
        { print }' > "$WORK/log"
STATUS=${PIPESTATUS[0]}
set -e
[ -z "${LOG:-}" ] || cat "$WORK/log" "$WORK/errors" > "$LOG"
if [ "$STATUS" -ne 0 ]; then
    tool_error "$WORK/log" "$WORK/errors" "fairseq-interactive ended with status $STATUS" >&2
    exit "$STATUS"
fi
python "$ROOT/scripts/hypotheses.py" --lines "$LINES_IN" --name "$INPUT" < "$WORK/log" > "$PARTIAL"
mv "$PARTIAL" "$OUTPUT"
cat "$WORK/log" "$WORK/errors" | sed -n 's/^.*block_plugins\.generation[ :|]*/inference.sh: /p' >&2
