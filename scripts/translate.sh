#!/usr/bin/env bash
# Translates raw text: one line in, one line out, in order, each as soon as its batch is decoded.
#
#   echo "Open the file." | scripts/translate.sh [--strategy gad] [--beta 1] [--tau 0] [--batch 32] [fairseq's flags ...]
#
# Tokenisation (sacremoses), BPE, decoding and detokenisation in one go, as scripts/preprocess.sh prepares text and inference.sh decodes
# it. Without any of the following four, the models are the bundled pair, checkpoints/demo.en-de, which translates English into German
# on the CPU (unless CPU=0 is given).
# --data DIR          folder with the dictionaries (dict.SRC.txt, dict.TGT.txt)                     variable DATA
# --codes FILE        the BPE codes                                                                 CODES
# --verifier FILE     checkpoint of the verifier, for the strategies gad, AR, left2right, fairseq   VERIFIER
# --drafter FILE      checkpoint of the drafter, for the strategies gad and drafter                 DRAFTER
# --source-lang LANG, --target-lang LANG   languages (en, de)                                       SRC, TGT
# --strategy NAME     gad (default), AR, left2right, fairseq or drafter                             STRATEGY
# --beta N, --tau X   a draft token is kept if it is among the verifier's N best and within X of its best; 1 and 0 (default): the
#                     text is the verifier's own, 5 and 3 are faster                                BETA, TAU
# --batch N           lines decoded together, for which the first of them waits: 32, or 1 where they are typed   BATCH
#
# BLOCK, DRAFT_TOKENS, BEAM, LOOKAHEAD, DRAFTER_DTYPE, MAX_LEN_A, MAX_LEN_B, STATS, CPU, FP16, BF16, CUDA_GRAPHS and
# PYTHON_BIN are variables as for inference.sh, and so is what happens to a line that is too long.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

MORE=()
while [ $# -gt 0 ]; do
    case $1 in
    --data) NAME=DATA ;;
    --codes) NAME=CODES ;;
    --verifier) NAME=VERIFIER ;;
    --drafter) NAME=DRAFTER ;;
    --source-lang) NAME=SRC ;;
    --target-lang) NAME=TGT ;;
    --strategy) NAME=STRATEGY ;;
    --beta) NAME=BETA ;;
    --tau) NAME=TAU ;;
    --batch) NAME=BATCH ;;
    *)
        MORE+=("$1")
        shift
        continue
        ;;
    esac
    [ $# -ge 2 ] || fail "$1 needs a value"
    printf -v "$NAME" %s "$2"
    shift 2
done

SRC=${SRC:-en} TGT=${TGT:-de} STRATEGY=${STRATEGY:-gad} BETA=${BETA:-1} TAU=${TAU:-0}
if [ -t 0 ]; then BATCH=${BATCH:-1}; else BATCH=${BATCH:-32}; fi
need_batch BATCH
need_models
decoding_flags
need_fairseq fairseq-interactive

WORK=$(mktemp -d)
READER=
trap '[ -z "$READER" ] || kill "$READER" 2> /dev/null || true; rm -rf "$WORK"' EXIT
trap 'exit 130' INT

# Beside the pipe, not in it: where fairseq ends early, nobody waits for what is still to be read.
exec 3< <(exec python "$ROOT/scripts/source_lines.py" --stream "$WORK/count" 2> "$WORK/reader")
READER=$!
set +e
{
    PYTHONUNBUFFERED=1 fairseq-interactive "$DATA" --user-dir "$ROOT/block_plugins" --task translation_lev_modified \
        --source-lang "$SRC" --target-lang "$TGT" --tokenizer moses --moses-no-dash-splits --bpe subword_nmt --bpe-codes "$CODES" \
        --buffer-size "$BATCH" --batch-size "$BATCH" "${FLAGS[@]}" "${MORE[@]}" <&3 2> "$WORK/errors" &&
        echo "lines: $(cat "$WORK/count")"
} | python "$ROOT/scripts/hypotheses.py" --stream
STATUS=("${PIPESTATUS[@]}")
[ "${STATUS[1]}" -eq 0 ] || exit "${STATUS[1]}" # the reader of the output has gone, and needs no explanation
if [ "${STATUS[0]}" -ne 0 ]; then
    tool_error /dev/null "$WORK/errors" "fairseq-interactive ended with status ${STATUS[0]}" >&2
    exit "${STATUS[0]}"
fi
wait "$READER" || {
    cat "$WORK/reader" >&2
    exit 1
}
