#!/bin/sh
# A plugin for utter-runner in POSIX shell and awk.
#
# The runner starts this program, writes requests to its stdin and reads answers from its stdout. This file reads and
# writes the frames; shell-hello.awk, which is run once for each message, reads the JSON and answers it. Copy both files,
# put your own ops into the second, and leave this one alone. protocol/PROTOCOL.md says what each message means.

# A frame's length counts bytes. In this locale characters are bytes, here and in awk.
LC_ALL=C
export LC_ALL

MAX_FRAME=16777216
MAX_HEADER=8192
MAX_JUNK=65536

CR=$(printf '\r')
TAB=$(printf '\t')
BOM=$(printf '\357\273\277')
# Names of headers come in any mixture of upper and lower case.
CONTENT='[Cc][Oo][Nn][Tt][Ee][Nn][Tt]-'
LENGTH="$CONTENT[Ll][Ee][Nn][Gg][Tt][Hh]"
TYPE="$CONTENT[Tt][Yy][Pp][Ee]"

here=${0%/*}

send() {
    printf 'Content-Length: %d\r\n\r\n%s' "${#1}" "$1"
}

# The runner broke the framing: say so under the name that PROTOCOL.md has for it, and end.
fail() {
    echo "the runner broke the framing: $1" >&2
    send "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":\"the framing is broken\",\"data\":{\"framing\":\"$1\"}}}"
    exit 1
}

# Sets `trimmed` to the argument without spaces and tabs at its ends.
trim() {
    trimmed=$1
    while :; do
        case $trimmed in
        [" $TAB"]*) trimmed=${trimmed#?} ;;
        *[" $TAB"]) trimmed=${trimmed%?} ;;
        *) return ;;
        esac
    done
}

# Sets `length` from a line of a header part, if that is what the line is about.
read_line() {
    case $1 in
    *:*) ;;
    *) fail malformed_header ;;
    esac
    trim "${1%%:*}"
    name=$trimmed
    trim "${1#*:}"
    value=$trimmed
    # shellcheck disable=SC2254  # the names are patterns
    case $name in
    '' | *[" $TAB"]*) fail malformed_header ;;
    $LENGTH)
        case $value in
        '' | *[!0-9]*) fail bad_length ;;
        esac
        while [ "${#value}" -gt 1 ] && [ "$value" != "${value#0}" ]; do value=${value#0}; done
        # More digits than a shell can count with are too large in any case.
        if [ "${#value}" -gt 9 ] || [ "$value" -gt "$MAX_FRAME" ]; then fail frame_too_large; fi
        if [ "${length:-$value}" -ne "$value" ]; then fail conflicting_length; fi
        length=$value
        ;;
    $TYPE)
        case $value in
        *[Cc][Hh][Aa][Rr][Ss][Ee][Tt]*=*)
            trim "${value#*[Cc][Hh][Aa][Rr][Ss][Ee][Tt]*=}"
            case $trimmed in
            [Uu][Tt][Ff]8 | [Uu][Tt][Ff]-8 | '"'[Uu][Tt][Ff]8'"' | '"'[Uu][Tt][Ff]-8'"') ;;
            *) fail bad_content_type ;;
            esac
            ;;
        esac
        ;;
    esac
}

# Skips what belongs to no frame and reads a header part; sets `length`. Returns 1 at the end of the input.
read_header() {
    length='' size=0 junk=0 started=''
    while IFS= read -r line; do
        bytes=$((${#line} + 1))
        line=${line%"$CR"}
        if [ -z "$started" ]; then
            # shellcheck disable=SC2295  # it is a pattern
            before=${line%%$CONTENT*}
            header=''
            # Shells are slow at taking a long text off another; junk alone is not worth it.
            if [ "$before" != "$line" ]; then header=${line#"$before"}; fi
            # shellcheck disable=SC2254  # the names are patterns
            case $header in
            $LENGTH*:* | $TYPE*:*)
                case $before in
                *"$BOM") fail bom ;;
                esac
                started=yes
                line=$header
                bytes=$((bytes - ${#before}))
                junk=$((junk + ${#before}))
                ;;
            *) junk=$((junk + bytes)) ;;
            esac
            if [ "$junk" -gt "$MAX_JUNK" ]; then fail junk_too_large; fi
            if [ -z "$started" ]; then continue; fi
        fi
        size=$((size + bytes))
        if [ "$size" -gt "$MAX_HEADER" ]; then fail header_too_large; fi
        if [ -z "$line" ]; then
            if [ -z "$length" ]; then fail missing_length; fi
            if [ "$junk" -gt 0 ]; then echo "skipped $junk bytes on stdin that belong to no frame" >&2; fi
            return 0
        fi
        read_line "$line"
    done
    return 1
}

if [ -t 0 ]; then
    echo "shell-hello is a plugin for utter-runner: name it in a [[plugin]] table of the runner's config." >&2
    exit 2
fi

greeted=0
while read_header; do
    # The line break at the end tells a whole body from one that was cut off.
    answer=$({ head -c "$length" && echo; } | awk -v size="$length" -v greeted="$greeted" -f "$here/shell-hello.awk")
    case $? in
    0) ;;
    10) greeted=1 ;;
    *) exit 1 ;;
    esac
    if [ -n "$answer" ]; then send "$answer"; fi
done
