#!/usr/bin/env bash
# The quality of a pair of models on a test set, as a table in Markdown: each way of decoding with its scores, the share of lines that
# are those of greedy decoding, the tokens of an iteration and alpha.
#
#   DATA=bin REFERENCE=test.de VERIFIER=verifier.pt DRAFTER=drafter.pt benchmarks/pair_quality.sh
#
# DATA       folder that fairseq-preprocess wrote, whose test set is translated
# REFERENCE  its raw reference
# VERIFIER, DRAFTER   the checkpoints; the drafter is an autoregressive one
# ROWS       what is compared: fairseq (beam 5), AR, and BETA:TAU:DRAFT_TOKENS for gad with whole drafts (default: what follows
#            "ROWS=" below); AR must be there, since the others' lines are compared with its own
# BATCH      sentences decoded together (32)
# CPU=0      decodes on a GPU;  FP16=1  in half precision (GPU only)
# PYTHON_BIN folder with fairseq's commands (default: the active environment, else .venv)
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
. "$ROOT/scripts/common.sh"

help_if_asked "$@"

need DATA "the folder that fairseq-preprocess wrote"
need REFERENCE "the raw reference of its test set"
need_folder "$DATA" "the data folder (DATA)"
need_file "$REFERENCE" "the reference (REFERENCE)"
need_fairseq fairseq-generate
ROWS=${ROWS:-AR fairseq 1:0:5 1:0:12 1:0:25 5:3:12 5:3:25}
case " $ROWS " in *" AR "*) ;; *) fail "ROWS has no AR, with which the others are compared: $ROWS" ;; esac
CPU=${CPU:-1} BATCH=${BATCH:-32}
need_batch BATCH
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# decode ROW: WORK/ROW.log, .scores and .json
decode() {
    local log=$WORK/$1.log
    STRATEGY=gad LOOKAHEAD=constant STATS=$WORK/$1.json
    case $1 in
    fairseq | AR) STRATEGY=$1 LOOKAHEAD="" DRAFT_TOKENS="" ;;
    *) IFS=: read -r BETA TAU DRAFT_TOKENS <<< "$1" ;;
    esac
    decoding_flags
    fairseq-generate "$DATA" --user-dir "$ROOT/block_plugins" --task translation_lev_modified --gen-subset test --batch-size "$BATCH" \
        --remove-bpe "${FLAGS[@]}" > "$log" 2> "$WORK/errors" || fail "$(tool_error "$log" "$WORK/errors" "fairseq-generate failed")"
    cat "$WORK/errors" >> "$log" # tells the languages
    "$ROOT/scripts/score.sh" --raw-reference "$REFERENCE" "$log" > "$WORK/$1.scores"
}
decode AR
generate_lines H "$WORK/AR.log" > "$WORK/greedy"

echo "| decoding | BLEU, tokenised | compound-split | sacreBLEU | chrF | lines as greedy | tokens an iteration | alpha |"
echo "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
for row in $ROWS; do
    [ "$row" = AR ] || decode "$row"
    case $row in
    fairseq) name="fairseq, beam 5" ;;
    AR) name="\`AR\` (greedy)" ;;
    1:*) name="\`gad\`, beta 1, $DRAFT_TOKENS draft tokens" ;;
    *) name="\`gad\`, beta $BETA, tau $TAU, $DRAFT_TOKENS draft tokens" ;;
    esac
    # of a row of the scores the first figure
    scores=$(awk 'NR > 1 && NR < 6 { for (i = 1; $i !~ /^[0-9.]+$/; i++); printf " %s |", $i }' "$WORK/$row.scores")
    PYTHONPATH=$ROOT/scripts python - "$WORK/greedy" <(generate_lines H "$WORK/$row.log") "$WORK/$row.json" "| $name |$scores" << 'END'
import json
import sys
from pathlib import Path

from demo_table import differing
from score_table import read_lines

greedy, found = (read_lines(Path(path)) for path in sys.argv[1:3])
same = 1 - len(differing(greedy, found)) / len(greedy)
statistics = json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))
cells = [f"{same:.1%}".replace("%", " %")]
for name in ("accepted_per_iteration", "alpha"):
    cells.append("" if statistics.get(name) is None else f"{statistics[name]:.2f}")
print(sys.argv[4], " | ".join(cells), "|", flush=True)
END
done
