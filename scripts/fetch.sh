# Files from elsewhere, for get_data.sh and get_checkpoints.sh; sourced by them after common.sh.
#
# A source NAME is two variables: NAME_URL, its address (anything that curl reads, file:// among it, or the link of a file on
# Google Drive), and NAME_SHA256, its checksum, which may be left out. A file is fetched under the name FILE.part and gets its own
# name when it is whole and what it should be. Its checksum stays beside it in FILE.sha256, and holds for every later run.

TRIES=${TRIES:-5} # of a transfer that breaks off; each goes on where the last one stopped

# A write beyond a limit on the size of files shall fail as one to a full disk does, not kill the process that writes.
trap '' XFSZ

MESSAGES=$(mktemp)
trap 'rm -f "$MESSAGES"' EXIT

# source_is NAME URL [SHA256]: where NAME comes from unless NAME_URL says otherwise. The checksum is that of this source only; set but
# empty, NAME_SHA256 switches it off.
source_is() {
    local url=$1_URL sum=$1_SHA256
    [ -z "${!url:-}" ] || return 0
    printf -v "$url" %s "$2"
    [ -n "${!sum+set}" ] || printf -v "$sum" %s "${3:-}"
}

# What curl fetches for an address: links to Google Drive lead to a page, not to the file.
direct_address() {
    local id=
    case $1 in
    https://drive.google.com/file/d/*) id=${1#*/file/d/} id=${id%%[/?]*} ;;
    https://drive.google.com/*[?\&]id=*) id=${1#*[?&]id=} id=${id%%&*} ;;
    esac
    if [ -n "$id" ]; then
        echo "https://drive.usercontent.google.com/download?id=$id&export=download&confirm=t"
    else
        echo "$1"
    fi
}

# The last line of sense that a failed command printed.
reason() {
    local line
    line=$(grep -a '^error: ' "$MESSAGES" | tail -n 1 || true)
    [ -n "$line" ] || line=$(grep -av '^[[:space:]]*$' "$MESSAGES" | tail -n 1 || true)
    line=${line#error: }
    echo "${line:-it gave no reason}"
}

# The first one, which tells more where tar has failed.
first_reason() {
    grep -av '^[[:space:]]*$' "$MESSAGES" | head -n 1 || true
}

# The checksum of FILE in the algorithm that SUM is of: 32 digits are an MD5, which is all that is known of some sources.
checksum() { # FILE SUM
    if [ ${#2} -eq 32 ]; then md5sum "$1"; else sha256sum "$1"; fi | cut -d ' ' -f 1
}

# download NAME URL FILE.part: goes on behind what is there already.
download() {
    local try status resumed messages=$MESSAGES progress=(--silent --show-error)
    [ ! -t 2 ] || messages=/dev/stderr progress=(--progress-bar)
    for ((try = 1; ; try++)); do
        resumed=0 status=0
        [ ! -s "$3" ] || resumed=1
        : > "$MESSAGES"
        curl --fail --location "${progress[@]}" --retry 3 --connect-timeout 30 --speed-time 120 --speed-limit 1 \
            --continue-at - --output "$3" -- "$2" 2> "$messages" || status=$?
        [ -s "$MESSAGES" ] || echo "curl's status is $status" > "$MESSAGES" # a terminal has had its message
        case $status in
        0) return ;;
        23) fail "$3 can't be written: the disk is full, or a quota is reached ($(free_space "$3") free);" \
            "make room, and the same command goes on from here" ;;
        33 | 36) # it can't be resumed
            [ "$resumed" = 1 ] || fail "$1_URL: $2 can't be fetched: $(reason)"
            rm -f "$3"
            ;;
        7 | 16 | 18 | 28 | 35 | 52 | 55 | 56 | 92)
            [ "$try" -lt "$TRIES" ] ||
                fail "$1_URL: $2 broke off $TRIES times ($(reason)); the same command goes on from here"
            echo "the transfer broke off, going on"
            sleep "$((try - 1))"
            ;;
        *) fail "$1_URL: $2 can't be fetched: $(reason)" ;;
        esac
    done
}

free_space() { # FILE
    df -Pk "$(dirname "$1")" | awk 'NR == 2 { printf "%d MB", $4 / 1024 }'
}

# A page in place of the file: Google Drive's question whether it may go without a virus scan, a quota that is used up, a login.
is_web_page() { # FILE
    head -c 1000 "$1" | tr -d '\0\357\273\277' | tr -s '[:space:]' ' ' | grep -aqiE '^ ?<(!doctype html|html)'
}
title_of() { # FILE
    head -c 20000 "$1" | tr -d '\0' | tr '\n' ' ' | sed -nE 's/.*<title[^>]*>([^<]*)<.*/ "\1"/p' | head -n 1
}

# What a file has to be, by kind; what is wrong with it goes to standard output.
check_archive() {
    tar -tzf "$1" > /dev/null 2> "$MESSAGES" || echo "not a whole .tar.gz archive ($(first_reason))"
}
check_codes() {
    # one pair a line; a symbol may hold spaces of other kinds than the ordinary one
    awk -F'[ ]' '!/^#version/ && NF != 2 { exit 1 } END { if (NR == 0) exit 1 }' "$1" ||
        echo "no list of BPE merges, two symbols a line"
}
check_dictionary() {
    LC_ALL=C awk '!/^.+ [0-9]+( #fairseq:overwrite)?$/ { exit 1 } END { if (NR == 0) exit 1 }' "$1" ||
        echo "no fairseq dictionary, a symbol and its count a line"
}
check_checkpoint() {
    python "$ROOT/scripts/check_checkpoint.py" "$1" 2> "$MESSAGES" || reason
}

# fetch NAME FILE KIND: the source NAME as FILE, which is an archive, a checkpoint, codes or a dictionary.
fetch() {
    local url=$1_URL sum=$1_SHA256 file=$2 part=$2.part problem found
    url=$(direct_address "${!url}")
    sum=${!sum:-} sum=${sum,,}
    [ -n "$sum" ] || [ ! -e "$file.sha256" ] || sum=$(cut -d ' ' -f 1 "$file.sha256")
    if [ -e "$file" ]; then
        if [ -n "$sum" ]; then
            [ "$(checksum "$file" "$sum")" = "$sum" ] ||
                fail "$file is not what it was, or should be (checksum $(checksum "$file" "$sum") instead of $sum);" \
                    "remove it, and the same command fetches it again"
        else # somebody put it there
            problem=$("check_$3" "$file")
            [ -z "$problem" ] || fail "$file: $problem"
        fi
        [ -e "$file.sha256" ] || record "$file" "$file"
        echo "there already: $file"
        return
    fi

    # Text can't be seen to be whole, so it is never resumed; the rest may be whole already, and wait for its name only.
    case $3 in codes | dictionary) rm -f "$part" ;; esac
    if [ ! -s "$part" ] || [ -n "$("check_$3" "$part")" ]; then
        echo "fetching $url"
        download "$1" "$url" "$part"
    fi
    if [ ! -s "$part" ]; then
        rm -f "$part"
        fail "$1_URL: $url is empty"
    fi
    if is_web_page "$part"; then
        problem=$(title_of "$part")
        rm -f "$part"
        fail "$1_URL: $url answered with a web page$problem, not with the file; fetch it with a browser, then give $1_URL=file://..."
    fi
    problem=$("check_$3" "$part")
    if [ -n "$problem" ]; then
        found=$(wc -c < "$part")
        rm -f "$part"
        fail "$1_URL: $url is damaged or cut short ($((found)) bytes): $problem"
    fi
    if [ -n "$sum" ]; then
        found=$(checksum "$part" "$sum")
        if [ "$found" != "$sum" ]; then
            rm -f "$part"
            fail "$1_URL: the checksum of $url is $found, not $sum ($1_SHA256, or $file.sha256 from an earlier run)"
        fi
    fi
    record "$part" "$file"
    mv "$part" "$file"
}

# record CONTENT FILE: FILE.sha256 as sha256sum -c reads it
record() {
    (cd "$(dirname "$1")" && sha256sum "$(basename "$1")" | sed 's/\.part$//' > "$(basename "$2").sha256.part") 2> "$MESSAGES" ||
        fail "$2.sha256.part can't be written: $(reason)"
    mv "$2.sha256.part" "$2.sha256"
}

# The published BPE codes and dictionaries of a language pair, as FOLDER/codes and FOLDER/dict.LANG.txt. The codes of the
# English-Romanian models were not published: their text comes encoded.
fetch_vocabulary() { # PAIR FOLDER
    local upstream=https://raw.githubusercontent.com/hemingkx/SpecDec/main/data sum lang
    case $1 in
    wmt14.*)
        source_is CODES "$upstream/wmt14.en-de/bpe.32000" \
            6f4260d3167611a7c34a6b1b81fd379a2c0444237b3e3bf63dfae3948e6aaaea
        sum=79828cb329b56943ed0cf30296a18b5914a27c7a381f4289add76dac55f60c19
        source_is DICT_EN "$upstream/wmt14.en-de/dict.en.txt" $sum
        source_is DICT_DE "$upstream/wmt14.en-de/dict.de.txt" $sum
        ;;
    wmt16.*)
        sum=0a78c405a8cdd2483335aa7fc5d8c1cd76f89a3faf5ec602a8895c70a2ea39df
        source_is DICT_EN "$upstream/wmt16.en-ro/dict.en.txt" $sum
        source_is DICT_RO "$upstream/wmt16.en-ro/dict.ro.txt" $sum
        ;;
    esac
    [ -z "${CODES_URL:-}" ] || fetch CODES "$2/codes" codes
    for lang in en de ro; do
        case $1 in *"$lang"*) fetch "DICT_${lang^^}" "$2/dict.$lang.txt" dictionary ;; esac
    done
}

need_tools() {
    local tool
    for tool in curl tar gzip sha256sum awk; do
        command -v "$tool" > /dev/null || fail "$tool is not on the PATH: install it (on Debian and Ubuntu: apt-get install $tool)"
    done
}
