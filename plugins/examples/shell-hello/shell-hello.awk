# Answers one message: reads its JSON text from stdin and prints the JSON text of the answer, if there is one.
#
#   awk -v size=BYTES -v greeted=0|1 -f shell-hello.awk
#
# Exit status: 0; 10 when the message was protocol.hello, answered with a result; 1 when the text is shorter than `size`.

# ---- What this plugin does -------------------------------------------------------------------------------------------

# The list of ops: what each does to the world, and what its arguments look like, as a JSON Schema.
function capabilities() {
    return "{\"ops\":[" \
        "{\"op\":\"hello\",\"side_effect\":\"none\",\"description\":\"Greets someone.\"," \
        "\"schema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":200}}," \
        "\"required\":[\"name\"],\"additionalProperties\":false}}," \
        "{\"op\":\"disk_free\",\"side_effect\":\"none\",\"description\":\"Says how much room is left at home.\"," \
        "\"schema\":{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}}]}"
}

# Does an op and returns an ActionResult. `name` is the op without the prefix action.
function invoke(name,    line, field) {
    if (name == "hello") {
        if (kind["/params/args/name"] != "string") return refuse(-32602, "hello needs a name", "field", "args.name")
        # The name is JSON already, between its quotation marks.
        return done_with("Hello, " inside(raw["/params/args/name"]) "!")
    }
    if (name == "disk_free") {
        while (("df -Pk \"$HOME\" 2>&1" | getline line) > 0) split(line, field, " ")
        if (field[4] !~ /^[0-9]+$/) return failed_with("The room that is left could not be found out.")
        return done_with(sprintf("%.0f gigabytes are free.", field[4] / 1000000))
    }
    return refuse(-32602, "shell-hello has no such op", "field", "op")
}

# What the methods answer. `params` of the message are in kind[], raw[] and text[] below /params.
function answer(method) {
    if (method == "protocol.hello") {
        if (kind["/params/protocol"] != "string") return refuse(-32602, "protocol is missing", "field", "protocol")
        now_greeted = 1
        return "{\"protocol\":\"1.0\",\"abi\":1," \
            "\"plugin\":{\"name\":\"shell-hello\",\"version\":\"0.1.0\",\"kind\":\"action\"}," \
            "\"transport\":\"stdio\",\"provides\":[\"action.invoke@1\"],\"requires\":[],\"permissions\":[]}"
    }
    if (method == "plugin.describe")
        return "{\"methods\":[\"protocol.hello\",\"plugin.describe\",\"plugin.health\"," \
            "\"action.capabilities\",\"action.invoke\"],\"streams\":[]}"
    if (method == "plugin.health") return "{\"status\":\"ok\",\"detail\":\"\"}"
    if (!greeted) return refuse(-32600, "protocol.hello comes first")
    if (method == "action.capabilities") return capabilities()
    if (method == "action.invoke") {
        if (kind["/params/op"] != "string") return refuse(-32602, "op is missing", "field", "op")
        sub(/^action\./, "", text["/params/op"])
        return invoke(text["/params/op"])
    }
    return refuse(-32601, "there is no such method")
}

function done_with(sentence) { return "{\"ok\":true,\"detail\":\"" sentence "\",\"data\":{}}" }
function failed_with(sentence) { return "{\"ok\":false,\"detail\":\"" sentence "\",\"data\":{}}" }

# ---- JSON-RPC 2.0 ----------------------------------------------------------------------------------------------------

{ body = (NR == 1) ? $0 : body "\n" $0 }

END {
    # What came of a frame whose end did not come is no message.
    if (length(body) != size) exit 1
    # Whatever is refused is refused with the id of the message, once that is known.
    id = "null"
    result = handle()
    if (error != "") print "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"error\":" error "}"
    else if (result != "") print "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"result\":" result "}"
    exit now_greeted && error == "" ? 10 : 0
}

# Returns a result, or nothing and sets `error`, or nothing at all: then the message needs no answer.
function handle() {
    if (!is_utf8(body) || !parse()) return refuse(-32700, "not JSON in UTF-8")
    if (kind[""] != "object") return refuse(-32600, "not a JSON-RPC message")
    if (is_id("/id")) id = raw["/id"]
    if (text["/jsonrpc"] != "2.0" || kind["/jsonrpc"] != "string") return refuse(-32600, "not JSON-RPC 2.0")
    # This plugin asks nothing, so an answer is none of its business.
    if (!("/method" in kind) && ("/result" in kind) + ("/error" in kind) == 1) return ""
    if (kind["/method"] != "string") return refuse(-32600, "not a JSON-RPC message")
    # Nothing that it does takes long enough to be cancelled: there is no notification that matters.
    if (!("/id" in kind)) return ""
    if (id == "null") return refuse(-32600, "not an id")
    if (("/params" in kind) && kind["/params"] != "object") return refuse(-32602, "params must be an object")
    return answer(text["/method"])
}

# Sets `error` and returns nothing. `field` and `value` become its data.
function refuse(code, message, field, value) {
    error = "{\"code\":" code ",\"message\":\"" message "\"" \
        (field == "" ? "" : ",\"data\":{\"" field "\":\"" value "\"}") "}"
    return ""
}

# Whether the value at a path is a string of at most 1024 characters, or an integer of 64 bits.
function is_id(path,    value, digits) {
    # To look at what is not there would make it.
    if (!(path in kind)) return 0
    value = raw[path]
    if (kind[path] == "string") return gsub(/[^\200-\277]/, "&", text[path]) <= 1024
    if (kind[path] != "number" || value !~ /^-?[0-9]+$/) return 0
    digits = value
    sub(/^-/, "", digits)
    # As text: awk's own numbers are not that exact. The letter keeps it from comparing them as numbers.
    return length(digits) < 19 || (length(digits) == 19 && "x" digits <= "x922337203685477580" (value ~ /^-/ ? 8 : 7))
}

# ---- JSON ------------------------------------------------------------------------------------------------------------

# Takes `body` apart. Afterwards kind[path] is object, array, string, number, true, false or null, raw[path] the JSON
# text of what is no object and no array, and text[path] what a string says. A path is a JSON pointer: /params/args/name.
# It keeps account of what is open by itself: not every awk can call a function 256 deep.
function parse(    path, depth, opening, base, closing, count) {
    rest = body
    for (;;) {
        forget(path)
        opening = skip()
        if (opening == "{" || opening == "[") {
            if (++depth > 256) return 0
            kind[path] = opening == "{" ? "object" : "array"
            base[depth] = path
            closing[depth] = opening == "{" ? "}" : "]"
            count[depth] = 0
            rest = substr(rest, 2)
            if (skip() != closing[depth]) {
                if (!step_into(base[depth], closing[depth], 0)) return 0
                path = inner
                continue
            }
        } else if (!read_scalar(path, opening)) return 0
        # A value is over, and perhaps what it stood in.
        for (; depth > 0 && skip() == closing[depth]; depth--) rest = substr(rest, 2)
        if (depth == 0) return skip() == ""
        if (skip() != ",") return 0
        rest = substr(rest, 2)
        if (!step_into(base[depth], closing[depth], ++count[depth])) return 0
        path = inner
    }
}

# Leaves out white space; returns the next character.
function skip() {
    if (index(" \t\r\n", substr(rest, 1, 1))) sub(/^[ \t\r\n]+/, "", rest)
    return substr(rest, 1, 1)
}

# Sets `inner` to the path of the next member of an object or an array; reads its key, if it has one.
function step_into(path, closing, number,    key) {
    inner = path "/" number
    if (closing == "]") return 1
    if (skip() != "\"" || !read_string("key")) return 0
    key = text["key"]
    gsub(/~/, "~0", key)
    gsub(/\//, "~1", key)
    inner = path "/" key
    if (skip() != ":") return 0
    rest = substr(rest, 2)
    return 1
}

function read_scalar(path, opening) {
    if (opening == "\"") return read_string(path)
    if (match(rest, /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?/)) kind[path] = "number"
    else if (match(rest, /^(true|false|null)/)) kind[path] = substr(rest, 1, RLENGTH)
    else return 0
    raw[path] = substr(rest, 1, RLENGTH)
    rest = substr(rest, RLENGTH + 1)
    return 1
}

# Of duplicate keys the last counts: nothing of an earlier one is left.
function forget(path,    one) {
    if (path in kind) for (one in kind) if (index(one, path "/") == 1) delete kind[one]
}

function read_string(path,    found) {
    found = "\""
    rest = substr(rest, 2)
    for (;;) {
        # Up to the next quotation mark or backslash; control characters are not allowed.
        if (match(rest, /^[^"\\\001-\037]+/)) {
            found = found substr(rest, 1, RLENGTH)
            rest = substr(rest, RLENGTH + 1)
        }
        if (substr(rest, 1, 1) == "\"") break
        if (!match(rest, /^\\(["\\\/bfnrt]|u[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F])/)) return 0
        found = found substr(rest, 1, RLENGTH)
        rest = substr(rest, RLENGTH + 1)
    }
    rest = substr(rest, 2)
    kind[path] = "string"
    raw[path] = found "\""
    text[path] = said(substr(found, 2))
    return 1
}

# The inside of a JSON string that has been checked.
function inside(string) { return substr(string, 2, length(string) - 2) }

# What a JSON string says: its inside without the escapes.
function said(escaped,    out, at, letter, code, low) {
    while ((at = index(escaped, "\\")) > 0) {
        out = out substr(escaped, 1, at - 1)
        letter = substr(escaped, at + 1, 1)
        escaped = substr(escaped, at + 2)
        if (letter == "u") {
            code = hex(escaped)
            escaped = substr(escaped, 5)
            if (code >= 55296 && code < 56320 && substr(escaped, 1, 2) == "\\u") {
                low = hex(substr(escaped, 3))
                code = 65536 + (code - 55296) * 1024 + low - 56320
                escaped = substr(escaped, 7)
            }
            out = out utf8(code)
        } else if (letter == "n") out = out "\n"
        else if (letter == "t") out = out "\t"
        else if (letter == "r") out = out "\r"
        else if (letter == "b") out = out "\b"
        else if (letter == "f") out = out "\f"
        else out = out letter
    }
    return out escaped
}

function hex(digits,    at, number) {
    for (at = 1; at <= 4; at++) number = number * 16 + index("0123456789abcdef", tolower(substr(digits, at, 1))) - 1
    return number
}

function utf8(code) {
    # awk's strings do not all hold a zero; no name has one.
    if (code == 0) return "?"
    if (code < 128) return sprintf("%c", code)
    if (code < 2048) return sprintf("%c%c", 192 + int(code / 64), 128 + code % 64)
    if (code < 65536) return sprintf("%c%c%c", 224 + int(code / 4096), 128 + int(code / 64) % 64, 128 + code % 64)
    return sprintf("%c%c%c%c", 240 + int(code / 262144), 128 + int(code / 4096) % 64, 128 + int(code / 64) % 64, 128 + code % 64)
}

function is_utf8(bytes) {
    if (bytes !~ /[\200-\377]/) return 1
    gsub(/[\302-\337][\200-\277]/, "", bytes)
    gsub(/\340[\240-\277][\200-\277]/, "", bytes)
    gsub(/[\341-\354\356\357][\200-\277][\200-\277]/, "", bytes)
    gsub(/\355[\200-\237][\200-\277]/, "", bytes)
    gsub(/\360[\220-\277][\200-\277][\200-\277]/, "", bytes)
    gsub(/[\361-\363][\200-\277][\200-\277][\200-\277]/, "", bytes)
    gsub(/\364[\200-\217][\200-\277][\200-\277]/, "", bytes)
    return bytes !~ /[\200-\377]/
}
