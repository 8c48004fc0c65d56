;; A plugin for utter-runner as a WebAssembly module: WASI preview 1, no compiler, nothing but this text.
;;
;; The runner starts it, writes requests to its stdin and reads answers from its stdout. It owns nothing else: no file,
;; no socket, no variable. protocol/PROTOCOL.md says what each message means; the README beside this file says how to
;; write the same in a language that is kinder to people.

(module
  (import "wasi_snapshot_preview1" "fd_read" (func $fd_read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $proc_exit (param i32)))

  ;; 0 to 15: for the system calls.  256 to 8191: texts.  16384 to 49151: the answer.  65536 to the end: what was read.
  (memory (export "memory") 2)
  (global $OUT i32 (i32.const 16384))
  (global $IN i32 (i32.const 65536))

  (global $MAX_HEADER i32 (i32.const 8192))
  (global $MAX_JUNK i32 (i32.const 65536))
  (global $MAX_FRAME i64 (i64.const 16777216))
  (global $MAX_ID i32 (i32.const 1024))

  ;; ---- What this plugin says ----------------------------------------------------------------------------------------
  ;; Texts end with a zero. What stands between two of them is never read.

  (data (i32.const 256) "{\"jsonrpc\":\"2.0\",\"id\":\00")                              (global $HEAD i32 (i32.const 256))
  (data (i32.const 288) "null\00")                                                      (global $NULL i32 (i32.const 288))
  (data (i32.const 304) "Content-Length: \00")                                          (global $LENGTH i32 (i32.const 304))

  (data (i32.const 512) ",\"result\":{\"protocol\":\"1.0\",\"abi\":1,\"plugin\":{\"name\":\"wasm-hello\","
    "\"version\":\"0.1.0\",\"kind\":\"action\"},\"transport\":\"stdio\",\"provides\":[\"action.invoke@1\"],"
    "\"requires\":[],\"permissions\":[]}}\00")                                          (global $HELLO i32 (i32.const 512))
  (data (i32.const 1024) ",\"result\":{\"methods\":[\"protocol.hello\",\"plugin.describe\",\"plugin.health\","
    "\"action.capabilities\",\"action.invoke\"],\"streams\":[]}}\00")                   (global $DESCRIBE i32 (i32.const 1024))
  (data (i32.const 1280) ",\"result\":{\"status\":\"ok\",\"detail\":\"\"}}\00")         (global $HEALTH i32 (i32.const 1280))
  (data (i32.const 1344) ",\"result\":{\"ops\":[{\"op\":\"hello\",\"side_effect\":\"none\",\"needs_confirm\":false,"
    "\"description\":\"Greets someone.\",\"schema\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
    "\"minLength\":1,\"maxLength\":200}},\"required\":[\"name\"],\"additionalProperties\":false}}]}}\00")
                                                                                        (global $OPS i32 (i32.const 1344))
  (data (i32.const 1792) ",\"result\":{\"ok\":true,\"detail\":\"Hello, \00")            (global $GREET i32 (i32.const 1792))
  (data (i32.const 1856) "!\",\"data\":{}}}\00")                                        (global $GREETED i32 (i32.const 1856))

  (data (i32.const 2048) ",\"error\":{\"code\":-32700,\"message\":\"not JSON in UTF-8\"}}\00")
                                                                                        (global $PARSE i32 (i32.const 2048))
  (data (i32.const 2176) ",\"error\":{\"code\":-32600,\"message\":\"not a JSON-RPC 2.0 message\"}}\00")
                                                                                        (global $INVALID i32 (i32.const 2176))
  (data (i32.const 2304) ",\"error\":{\"code\":-32600,\"message\":\"protocol.hello comes first\"}}\00")
                                                                                        (global $EARLY i32 (i32.const 2304))
  (data (i32.const 2432) ",\"error\":{\"code\":-32600,\"message\":\"the framing is broken\",\"data\":{\"framing\":\"\00")
                                                                                        (global $BROKEN i32 (i32.const 2432))
  (data (i32.const 2560) ",\"error\":{\"code\":-32601,\"message\":\"wasm-hello has no such method\",\"data\":{\"method\":\00")
                                                                                        (global $UNKNOWN i32 (i32.const 2560))
  (data (i32.const 2688) ",\"error\":{\"code\":-32602,\"message\":\"missing, or not what it should be\",\"data\":{\"field\":\"\00")
                                                                                        (global $WRONG i32 (i32.const 2688))
  (data (i32.const 2816) "}}}\00")                                                      (global $END3 i32 (i32.const 2816))
  (data (i32.const 2832) "\"}}}\00")                                                    (global $END4 i32 (i32.const 2832))

  ;; ---- What others say ----------------------------------------------------------------------------------------------

  (data (i32.const 3072) "jsonrpc\00")                (global $jsonrpc i32 (i32.const 3072))
  (data (i32.const 3104) "2.0\00")                    (global $2.0 i32 (i32.const 3104))
  (data (i32.const 3136) "id\00")                     (global $id_key i32 (i32.const 3136))
  (data (i32.const 3168) "method\00")                 (global $method i32 (i32.const 3168))
  (data (i32.const 3200) "params\00")                 (global $params i32 (i32.const 3200))
  (data (i32.const 3232) "result\00")                 (global $result i32 (i32.const 3232))
  (data (i32.const 3264) "error\00")                  (global $error i32 (i32.const 3264))
  (data (i32.const 3296) "protocol.hello\00")         (global $protocol.hello i32 (i32.const 3296))
  (data (i32.const 3328) "plugin.describe\00")        (global $plugin.describe i32 (i32.const 3328))
  (data (i32.const 3360) "plugin.health\00")          (global $plugin.health i32 (i32.const 3360))
  (data (i32.const 3392) "action.capabilities\00")    (global $action.capabilities i32 (i32.const 3392))
  (data (i32.const 3424) "action.invoke\00")          (global $action.invoke i32 (i32.const 3424))
  (data (i32.const 3456) "protocol\00")               (global $protocol i32 (i32.const 3456))
  (data (i32.const 3488) "abi\00")                    (global $abi i32 (i32.const 3488))
  (data (i32.const 3520) "op\00")                     (global $op i32 (i32.const 3520))
  (data (i32.const 3552) "args\00")                   (global $args i32 (i32.const 3552))
  (data (i32.const 3584) "args.name\00")              (global $args.name i32 (i32.const 3584))
  (data (i32.const 3616) "name\00")                   (global $name i32 (i32.const 3616))
  (data (i32.const 3648) "hello\00")                  (global $hello i32 (i32.const 3648))
  (data (i32.const 3680) "content-length\00")         (global $content-length i32 (i32.const 3680))
  (data (i32.const 3712) "content-type\00")           (global $content-type i32 (i32.const 3712))
  (data (i32.const 3744) "charset\00")                (global $charset i32 (i32.const 3744))
  (data (i32.const 3776) "utf-8\00")                  (global $utf-8 i32 (i32.const 3776))
  (data (i32.const 3808) "utf8\00")                   (global $utf8 i32 (i32.const 3808))
  (data (i32.const 3840) "true\00")                   (global $true i32 (i32.const 3840))
  (data (i32.const 3872) "false\00")                  (global $false i32 (i32.const 3872))

  ;; The framing errors, as PROTOCOL.md names them.
  (data (i32.const 4096) "missing_length\00")         (global $missing_length i32 (i32.const 4096))
  (data (i32.const 4128) "bad_length\00")             (global $bad_length i32 (i32.const 4128))
  (data (i32.const 4160) "conflicting_length\00")     (global $conflicting_length i32 (i32.const 4160))
  (data (i32.const 4192) "malformed_header\00")       (global $malformed_header i32 (i32.const 4192))
  (data (i32.const 4224) "bad_content_type\00")       (global $bad_content_type i32 (i32.const 4224))
  (data (i32.const 4256) "bom\00")                    (global $bom i32 (i32.const 4256))
  (data (i32.const 4288) "header_too_large\00")       (global $header_too_large i32 (i32.const 4288))
  (data (i32.const 4320) "frame_too_large\00")        (global $frame_too_large i32 (i32.const 4320))
  (data (i32.const 4352) "junk_too_large\00")         (global $junk_too_large i32 (i32.const 4352))

  ;; ---- Writing ------------------------------------------------------------------------------------------------------

  (global $out (mut i32) (i32.const 0))      ;; where the answer goes on
  (global $id (mut i32) (i32.const 0))       ;; the id that is answered, as it was written, and how long it is; 0: null
  (global $id_size (mut i32) (i32.const 0))

  (func $copy (param $from i32) (param $size i32)
    (memory.copy (global.get $out) (local.get $from) (local.get $size))
    (global.set $out (i32.add (global.get $out) (local.get $size))))

  (func $put (param $text i32)
    (local $end i32)
    (local.set $end (local.get $text))
    (loop $next
      (if (i32.load8_u (local.get $end)) (then
        (local.set $end (i32.add (local.get $end) (i32.const 1)))
        (br $next))))
    (call $copy (local.get $text) (i32.sub (local.get $end) (local.get $text))))

  ;; Begins an answer with the id and `text`.
  (func $begin (param $text i32)
    (global.set $out (global.get $OUT))
    (call $put (global.get $HEAD))
    (if (global.get $id_size)
      (then (call $copy (global.get $id) (global.get $id_size)))
      (else (call $put (global.get $NULL))))
    (call $put (local.get $text)))

  ;; Sends the answer. The header is written in front of it, backwards, so that both leave in one piece.
  (func $send
    (local $from i32) (local $rest i32)
    (local.set $from (i32.sub (global.get $OUT) (i32.const 4)))
    (i32.store (local.get $from) (i32.const 0x0a0d0a0d))
    (local.set $rest (i32.sub (global.get $out) (global.get $OUT)))
    (loop $digits
      (local.set $from (i32.sub (local.get $from) (i32.const 1)))
      (i32.store8 (local.get $from) (i32.add (i32.const 48) (i32.rem_u (local.get $rest) (i32.const 10))))
      (local.set $rest (i32.div_u (local.get $rest) (i32.const 10)))
      (br_if $digits (local.get $rest)))
    (local.set $from (i32.sub (local.get $from) (i32.const 16)))
    (memory.copy (local.get $from) (global.get $LENGTH) (i32.const 16))
    (loop $more
      (i32.store (i32.const 0) (local.get $from))
      (i32.store (i32.const 4) (i32.sub (global.get $out) (local.get $from)))
      (if (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))
        (then (call $proc_exit (i32.const 0))))  ;; nobody reads any more
      (local.set $from (i32.add (local.get $from) (i32.load (i32.const 8))))
      (br_if $more (i32.lt_u (local.get $from) (global.get $out)))))

  (func $say (param $text i32)
    (call $begin (local.get $text))
    (call $send))

  (func $wrong (param $field i32)
    (call $begin (global.get $WRONG))
    (call $put (local.get $field))
    (call $put (global.get $END4))
    (call $send))

  ;; After a framing error the position in the stream is lost, and so is this process.
  (func $broken (param $how i32)
    (global.set $id_size (i32.const 0))
    (call $begin (global.get $BROKEN))
    (call $put (local.get $how))
    (call $put (global.get $END4))
    (call $send)
    (call $proc_exit (i32.const 1)))

  ;; ---- Reading ------------------------------------------------------------------------------------------------------

  (global $p (mut i32) (i32.const 0))        ;; where the reader is
  (global $stop (mut i32) (i32.const 0))     ;; where it has to stop
  (global $first (mut i32) (i32.const 65536)) ;; what was read and not used yet: from here
  (global $end (mut i32) (i32.const 65536))  ;; to here

  ;; Waits for more bytes; ends the process when there are no more.
  (func $more
    (local $room i32)
    (if (i32.eq (global.get $first) (global.get $end)) (then
      (global.set $first (global.get $IN))
      (global.set $end (global.get $IN))))
    (local.set $room (i32.sub (i32.shl (memory.size) (i32.const 16)) (global.get $end)))
    (if (i32.eqz (local.get $room)) (then
      (if (i32.gt_u (global.get $first) (global.get $IN))
        (then
          (memory.copy (global.get $IN) (global.get $first) (i32.sub (global.get $end) (global.get $first)))
          (local.set $room (i32.sub (global.get $first) (global.get $IN)))
          (global.set $end (i32.sub (global.get $end) (local.get $room)))
          (global.set $first (global.get $IN)))
        (else
          (if (i32.eq (memory.grow (i32.const 16)) (i32.const -1)) (then (unreachable)))
          (local.set $room (i32.const 1048576))))))
    (i32.store (i32.const 0) (global.get $end))
    (i32.store (i32.const 4) (local.get $room))
    (if (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 8))
      (then (call $proc_exit (i32.const 1))))
    (if (i32.eqz (i32.load (i32.const 8))) (then (call $proc_exit (i32.const 0))))
    (global.set $end (i32.add (global.get $end) (i32.load (i32.const 8)))))

  ;; The byte at `at`, or -1 behind the end of what is being looked at, and for what is not there, which is at 0.
  (func $byte (param $at i32) (result i32)
    (if (result i32) (i32.lt_u (i32.sub (local.get $at) (global.get $IN)) (i32.sub (global.get $stop) (global.get $IN)))
      (then (i32.load8_u (local.get $at)))
      (else (i32.const -1))))

  (func $lower (param $char i32) (result i32)
    (select (i32.or (local.get $char) (i32.const 32)) (local.get $char)
      (i32.lt_u (i32.sub (local.get $char) (i32.const 65)) (i32.const 26))))

  ;; How many bytes from `at` on say `text`, in upper or lower case: all of them, or 0.
  (func $says (param $at i32) (param $text i32) (result i32)
    (local $size i32) (local $char i32)
    (loop $next
      (local.set $char (i32.load8_u (i32.add (local.get $text) (local.get $size))))
      (if (i32.eqz (local.get $char)) (then (return (local.get $size))))
      (if (i32.ne (call $lower (call $byte (i32.add (local.get $at) (local.get $size)))) (local.get $char))
        (then (return (i32.const 0))))
      (local.set $size (i32.add (local.get $size) (i32.const 1)))
      (br $next))
    (unreachable))

  (func $blank (param $char i32) (result i32)
    (i32.or (i32.eq (local.get $char) (i32.const 32)) (i32.eq (local.get $char) (i32.const 9))))

  ;; Whether from..to, without blanks around it, is `text`, in upper or lower case.
  (func $is_word (param $from i32) (param $to i32) (param $text i32) (result i32)
    (local.set $from (call $skip_blanks (local.get $from) (local.get $to)))
    (local.set $to (call $drop_blanks (local.get $from) (local.get $to)))
    (if (i32.eq (local.get $from) (local.get $to)) (then (return (i32.const 0))))
    (i32.eq (call $says (local.get $from) (local.get $text)) (i32.sub (local.get $to) (local.get $from))))

  (func $skip_blanks (param $from i32) (param $to i32) (result i32)
    (loop $next
      (if (i32.lt_u (local.get $from) (local.get $to)) (then
        (if (call $blank (i32.load8_u (local.get $from))) (then
          (local.set $from (i32.add (local.get $from) (i32.const 1)))
          (br $next))))))
    (local.get $from))

  (func $drop_blanks (param $from i32) (param $to i32) (result i32)
    (loop $next
      (if (i32.lt_u (local.get $from) (local.get $to)) (then
        (if (call $blank (i32.load8_u (i32.sub (local.get $to) (i32.const 1)))) (then
          (local.set $to (i32.sub (local.get $to) (i32.const 1)))
          (br $next))))))
    (local.get $to))

  ;; The first `char` in from..to, or `to`.
  (func $find (param $from i32) (param $to i32) (param $char i32) (result i32)
    (loop $next
      (if (i32.lt_u (local.get $from) (local.get $to)) (then
        (if (i32.ne (i32.load8_u (local.get $from)) (local.get $char)) (then
          (local.set $from (i32.add (local.get $from) (i32.const 1)))
          (br $next))))))
    (local.get $from))

  ;; ---- Frames: Content-Length, an empty line, the body ----------------------------------------------------------------

  ;; Whether a header part begins at `at`.
  (func $is_header (param $at i32) (result i32)
    (local $size i32)
    (local.set $size (call $says (local.get $at) (global.get $content-length)))
    (if (i32.eqz (local.get $size))
      (then (local.set $size (call $says (local.get $at) (global.get $content-type)))))
    (if (i32.eqz (local.get $size)) (then (return (i32.const 0))))
    (i32.eq (i32.const 58)  ;; :
      (call $byte (call $skip_blanks (i32.add (local.get $at) (local.get $size)) (global.get $stop)))))

  ;; Where the empty line that begins at `at` ends; 0 if there is none.
  (func $blank_line (param $at i32) (result i32)
    (if (i32.ne (call $byte (local.get $at)) (i32.const 10)) (then (return (i32.const 0))))
    (local.set $at (i32.add (local.get $at) (i32.const 1)))
    (if (i32.eq (call $byte (local.get $at)) (i32.const 13))
      (then (local.set $at (i32.add (local.get $at) (i32.const 1)))))
    (if (i32.ne (call $byte (local.get $at)) (i32.const 10)) (then (return (i32.const 0))))
    (i32.add (local.get $at) (i32.const 1)))

  ;; Waits for a whole frame. Its body is then in $p..$stop, and counts as used.
  (func $frame
    (local $header i32) (local $at i32) (local $after i32) (local $size i32)
    ;; Skip what belongs to no frame.
    (loop $look
      (global.set $stop (global.get $end))
      (local.set $header (global.get $first))
      (block $found
        (loop $next
          (if (i32.gt_u (i32.sub (local.get $header) (global.get $first)) (global.get $MAX_JUNK))
            (then (call $broken (global.get $junk_too_large))))
          (br_if $found (call $is_header (local.get $header)))
          (local.set $header (i32.add (local.get $header) (i32.const 1)))
          (br_if $next (i32.lt_u (local.get $header) (global.get $stop))))
        (call $more)
        (br $look)))
    (if (i32.ge_u (i32.sub (local.get $header) (global.get $first)) (i32.const 3)) (then
      (if (i32.eq (i32.and (i32.load (i32.sub (local.get $header) (i32.const 3))) (i32.const 0xffffff)) (i32.const 0xbfbbef))
        (then (call $broken (global.get $bom))))))
    (global.set $first (local.get $header))
    ;; Find the empty line.
    (local.set $at (i32.const 0))
    (loop $look
      (global.set $stop (global.get $end))
      (block $found
        (loop $next
          (local.set $after (call $blank_line (i32.add (global.get $first) (local.get $at))))
          (br_if $found (local.get $after))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (if (i32.ge_u (local.get $at) (global.get $MAX_HEADER)) (then (call $broken (global.get $header_too_large))))
          (br_if $next (i32.lt_u (i32.add (global.get $first) (local.get $at)) (global.get $stop))))
        ;; It may have begun with the last two bytes.
        (local.set $at (select (i32.sub (local.get $at) (i32.const 2)) (i32.const 0) (i32.gt_u (local.get $at) (i32.const 2))))
        (call $more)
        (br $look)))
    (if (i32.gt_u (i32.sub (local.get $after) (global.get $first)) (global.get $MAX_HEADER))
      (then (call $broken (global.get $header_too_large))))
    (local.set $size (call $length (global.get $first) (i32.add (global.get $first) (local.get $at))))
    (global.set $first (local.get $after))
    ;; Wait for the body.
    (loop $wait
      (if (i32.lt_u (i32.sub (global.get $end) (global.get $first)) (local.get $size)) (then
        (call $more)
        (br $wait))))
    (global.set $p (global.get $first))
    (global.set $first (i32.add (global.get $first) (local.get $size)))
    (global.set $stop (global.get $first)))

  ;; The length of the body, from the header lines in from..to.
  (func $length (param $from i32) (param $to i32) (result i32)
    (local $line i32) (local $colon i32) (local $found i64) (local $length i64)
    (local.set $length (i64.const -1))
    (loop $lines
      (local.set $line (call $find (local.get $from) (local.get $to) (i32.const 10)))
      (local.set $colon (call $find (local.get $from) (local.get $line) (i32.const 58)))
      (if (i32.eq (local.get $colon) (local.get $line)) (then (call $broken (global.get $malformed_header))))
      (if (call $is_word (local.get $from) (local.get $colon) (global.get $content-length))
        (then
          (local.set $found (call $decimal (i32.add (local.get $colon) (i32.const 1)) (call $drop_return (local.get $line))))
          (if (i64.eq (local.get $length) (i64.const -1)) (then (local.set $length (local.get $found))))
          (if (i64.ne (local.get $length) (local.get $found)) (then (call $broken (global.get $conflicting_length)))))
        (else
          (if (call $is_word (local.get $from) (local.get $colon) (global.get $content-type))
            (then (call $content_type (i32.add (local.get $colon) (i32.const 1)) (call $drop_return (local.get $line))))
            (else (call $other_name (local.get $from) (local.get $colon))))))
      (local.set $from (i32.add (local.get $line) (i32.const 1)))
      (br_if $lines (i32.lt_u (local.get $from) (local.get $to))))
    (if (i64.eq (local.get $length) (i64.const -1)) (then (call $broken (global.get $missing_length))))
    (if (i64.gt_u (local.get $length) (global.get $MAX_FRAME)) (then (call $broken (global.get $frame_too_large))))
    (i32.wrap_i64 (local.get $length)))

  ;; The end of a line without the CR in front of it.
  (func $drop_return (param $line i32) (result i32)
    (i32.sub (local.get $line)
      (i32.eq (i32.load8_u (i32.sub (local.get $line) (i32.const 1))) (i32.const 13))))

  (func $decimal (param $from i32) (param $to i32) (result i64)
    (local $digit i32) (local $value i64)
    (local.set $from (call $skip_blanks (local.get $from) (local.get $to)))
    (local.set $to (call $drop_blanks (local.get $from) (local.get $to)))
    (if (i32.gt_u (i32.sub (i32.sub (local.get $to) (local.get $from)) (i32.const 1)) (i32.const 18))
      (then (call $broken (global.get $bad_length))))
    (loop $next
      (local.set $digit (i32.sub (i32.load8_u (local.get $from)) (i32.const 48)))
      (if (i32.gt_u (local.get $digit) (i32.const 9)) (then (call $broken (global.get $bad_length))))
      (local.set $value (i64.add (i64.mul (local.get $value) (i64.const 10)) (i64.extend_i32_u (local.get $digit))))
      (local.set $from (i32.add (local.get $from) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $from) (local.get $to))))
    (local.get $value))

  ;; Of a content type the charset counts, and it has to be UTF-8.
  (func $content_type (param $from i32) (param $to i32)
    (local $next i32) (local $equals i32) (local $last i32)
    (local.set $next (call $find (local.get $from) (local.get $to) (i32.const 59)))  ;; ;
    (loop $parameters
      (if (i32.lt_u (local.get $next) (local.get $to)) (then
        (local.set $from (i32.add (local.get $next) (i32.const 1)))
        (local.set $next (call $find (local.get $from) (local.get $to) (i32.const 59)))
        (local.set $equals (call $find (local.get $from) (local.get $next) (i32.const 61)))  ;; =
        (if (call $is_word (local.get $from) (local.get $equals) (global.get $charset)) (then
          (local.set $from (call $skip_blanks (i32.add (local.get $equals) (i32.const 1)) (local.get $next)))
          (local.set $last (call $drop_blanks (local.get $from) (local.get $next)))
          ;; Without quotation marks.
          (local.set $from (i32.add (local.get $from) (i32.eq (i32.load8_u (local.get $from)) (i32.const 34))))
          (local.set $last (i32.sub (local.get $last)
            (i32.eq (i32.load8_u (i32.sub (local.get $last) (i32.const 1))) (i32.const 34))))
          (if (i32.eqz (i32.or
                (call $is_word (local.get $from) (local.get $last) (global.get $utf-8))
                (call $is_word (local.get $from) (local.get $last) (global.get $utf8))))
            (then (call $broken (global.get $bad_content_type))))))
        (br $parameters)))))

  ;; Any other header is ignored, if its name is one.
  (func $other_name (param $from i32) (param $to i32)
    (local.set $from (call $skip_blanks (local.get $from) (local.get $to)))
    (local.set $to (call $drop_blanks (local.get $from) (local.get $to)))
    (if (i32.or
          (i32.eq (local.get $from) (local.get $to))
          (i32.ne (call $find (local.get $from) (local.get $to) (i32.const 32)) (local.get $to)))
      (then (call $broken (global.get $malformed_header)))))

  ;; ---- JSON ---------------------------------------------------------------------------------------------------------
  ;; These move $p behind what they read and answer 1, or answer 0 where the text breaks the rules.

  (func $space
    (local $char i32)
    (loop $next
      (local.set $char (call $byte (global.get $p)))
      (if (i32.or (call $blank (local.get $char))
            (i32.or (i32.eq (local.get $char) (i32.const 10)) (i32.eq (local.get $char) (i32.const 13)))) (then
        (call $step)
        (br $next)))))

  (func $step
    (global.set $p (i32.add (global.get $p) (i32.const 1))))

  ;; Reads `char` if it comes next.
  (func $take (param $char i32) (result i32)
    (if (i32.ne (call $byte (global.get $p)) (local.get $char)) (then (return (i32.const 0))))
    (call $step)
    (i32.const 1))

  (func $value (param $depth i32) (result i32)
    (local $char i32)
    (call $space)
    (local.set $char (call $byte (global.get $p)))
    (if (i32.eq (local.get $char) (i32.const 34)) (then (return (call $string))))
    (if (i32.or (i32.eq (local.get $char) (i32.const 123)) (i32.eq (local.get $char) (i32.const 91))) (then
      (if (i32.eq (local.get $depth) (i32.const 256)) (then (return (i32.const 0))))
      ;; } is { + 2, and ] is [ + 2.
      (return (call $items (local.get $depth) (i32.add (local.get $char) (i32.const 2))))))
    (if (i32.eq (local.get $char) (i32.const 116)) (then (return (call $word (global.get $true)))))
    (if (i32.eq (local.get $char) (i32.const 102)) (then (return (call $word (global.get $false)))))
    (if (i32.eq (local.get $char) (i32.const 110)) (then (return (call $word (global.get $NULL)))))
    (call $number))

  ;; An object or an array, up to `close`.
  (func $items (param $depth i32) (param $close i32) (result i32)
    (call $step)
    (call $space)
    (if (call $take (local.get $close)) (then (return (i32.const 1))))
    (loop $next
      (if (i32.eq (local.get $close) (i32.const 125)) (then
        (call $space)
        (if (i32.eqz (call $string)) (then (return (i32.const 0))))
        (call $space)
        (if (i32.eqz (call $take (i32.const 58))) (then (return (i32.const 0))))))
      (if (i32.eqz (call $value (i32.add (local.get $depth) (i32.const 1)))) (then (return (i32.const 0))))
      (call $space)
      (br_if $next (call $take (i32.const 44))))
    (call $take (local.get $close)))

  ;; true, false or null. (`$says` takes upper case as well, so it looks again.)
  (func $word (param $text i32) (result i32)
    (local $size i32) (local $at i32)
    (local.set $size (call $says (global.get $p) (local.get $text)))
    (if (i32.eqz (local.get $size)) (then (return (i32.const 0))))
    (loop $next
      (if (i32.lt_u (i32.load8_u (i32.add (global.get $p) (local.get $at))) (i32.const 97)) (then (return (i32.const 0))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $at) (local.get $size))))
    (global.set $p (i32.add (global.get $p) (local.get $size)))
    (i32.const 1))

  ;; How many digits come next, and reads them.
  (func $digits (result i32)
    (local $from i32)
    (local.set $from (global.get $p))
    (loop $next
      (if (i32.lt_u (i32.sub (call $byte (global.get $p)) (i32.const 48)) (i32.const 10)) (then
        (call $step)
        (br $next))))
    (i32.sub (global.get $p) (local.get $from)))

  (func $number (result i32)
    (drop (call $take (i32.const 45)))  ;; -
    (if (i32.eqz (call $take (i32.const 48)))  ;; nothing stands behind a leading 0
      (then (if (i32.eqz (call $digits)) (then (return (i32.const 0))))))
    (if (call $take (i32.const 46))  ;; .
      (then (if (i32.eqz (call $digits)) (then (return (i32.const 0))))))
    (if (i32.eq (call $lower (call $byte (global.get $p))) (i32.const 101)) (then  ;; e
      (call $step)
      (if (i32.eqz (call $take (i32.const 43))) (then (drop (call $take (i32.const 45)))))
      (if (i32.eqz (call $digits)) (then (return (i32.const 0))))))
    (i32.const 1))

  (func $string (result i32)
    (local $char i32)
    (if (i32.eqz (call $take (i32.const 34))) (then (return (i32.const 0))))
    (loop $next
      (local.set $char (call $byte (global.get $p)))
      (if (i32.eq (local.get $char) (i32.const 34)) (then
        (call $step)
        (return (i32.const 1))))
      (if (i32.lt_s (local.get $char) (i32.const 32)) (then (return (i32.const 0))))
      (call $step)
      (if (i32.eq (local.get $char) (i32.const 92)) (then
        (local.set $char (call $escape))
        (br_if $next (i32.and (i32.ge_s (local.get $char) (i32.const 0))
          (i32.ne (i32.and (local.get $char) (i32.const 0xf800)) (i32.const 0xd800))))
        ;; Half of a pair: the first one, which the second has to follow.
        (if (i32.ne (i32.and (local.get $char) (i32.const 0xfc00)) (i32.const 0xd800)) (then (return (i32.const 0))))
        (if (i32.eqz (call $take (i32.const 92))) (then (return (i32.const 0))))
        (br_if $next (i32.eq (i32.and (call $escape) (i32.const 0xfc00)) (i32.const 0xdc00)))
        (return (i32.const 0))))
      (br_if $next (i32.lt_u (local.get $char) (i32.const 128)))
      (br_if $next (call $sequence (local.get $char)))
      (return (i32.const 0)))
    (unreachable))

  ;; The rest of a character that takes several bytes of UTF-8.
  (func $sequence (param $lead i32) (result i32)
    (local $low i32) (local $high i32) (local $count i32)
    (local.set $low (i32.const 0x80))
    (local.set $high (i32.const 0xbf))
    (if (i32.or (i32.lt_u (local.get $lead) (i32.const 0xc2)) (i32.gt_u (local.get $lead) (i32.const 0xf4)))
      (then (return (i32.const 0))))
    (local.set $count (i32.add (i32.const 1)
      (i32.add (i32.ge_u (local.get $lead) (i32.const 0xe0)) (i32.ge_u (local.get $lead) (i32.const 0xf0)))))
    ;; Neither longer than need be, nor half of a pair, nor beyond the last character.
    (if (i32.eq (local.get $lead) (i32.const 0xe0)) (then (local.set $low (i32.const 0xa0))))
    (if (i32.eq (local.get $lead) (i32.const 0xed)) (then (local.set $high (i32.const 0x9f))))
    (if (i32.eq (local.get $lead) (i32.const 0xf0)) (then (local.set $low (i32.const 0x90))))
    (if (i32.eq (local.get $lead) (i32.const 0xf4)) (then (local.set $high (i32.const 0x8f))))
    (loop $next
      (if (i32.or (i32.lt_s (call $byte (global.get $p)) (local.get $low))
            (i32.gt_s (call $byte (global.get $p)) (local.get $high)))
        (then (return (i32.const 0))))
      (call $step)
      (local.set $low (i32.const 0x80))
      (local.set $high (i32.const 0xbf))
      (local.set $count (i32.sub (local.get $count) (i32.const 1)))
      (br_if $next (local.get $count)))
    (i32.const 1))

  ;; What an escape stands for, read from behind the backslash on; -1 if it is none.
  (func $escape (result i32)
    (local $char i32) (local $count i32) (local $digit i32) (local $code i32)
    (local.set $char (call $byte (global.get $p)))
    (call $step)
    (if (i32.eq (local.get $char) (i32.const 34)) (then (return (i32.const 34))))
    (if (i32.eq (local.get $char) (i32.const 92)) (then (return (i32.const 92))))
    (if (i32.eq (local.get $char) (i32.const 47)) (then (return (i32.const 47))))
    (if (i32.eq (local.get $char) (i32.const 98)) (then (return (i32.const 8))))
    (if (i32.eq (local.get $char) (i32.const 102)) (then (return (i32.const 12))))
    (if (i32.eq (local.get $char) (i32.const 110)) (then (return (i32.const 10))))
    (if (i32.eq (local.get $char) (i32.const 114)) (then (return (i32.const 13))))
    (if (i32.eq (local.get $char) (i32.const 116)) (then (return (i32.const 9))))
    (if (i32.ne (local.get $char) (i32.const 117)) (then (return (i32.const -1))))  ;; u
    (loop $next
      (local.set $digit (i32.sub (call $lower (call $byte (global.get $p))) (i32.const 48)))
      (if (i32.gt_u (local.get $digit) (i32.const 9)) (then
        (local.set $digit (i32.sub (local.get $digit) (i32.const 39)))  ;; a is 97, which is 48 + 39 + 10
        (if (i32.gt_u (i32.sub (local.get $digit) (i32.const 10)) (i32.const 5)) (then (return (i32.const -1))))))
      (local.set $code (i32.or (i32.shl (local.get $code) (i32.const 4)) (local.get $digit)))
      (call $step)
      (local.set $count (i32.add (local.get $count) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $count) (i32.const 4))))
    (local.get $code))

  ;; Whether the string at `at` is `text`. What is looked at from here on is known to be JSON.
  (func $is (param $at i32) (param $text i32) (result i32)
    (local $char i32)
    (if (i32.ne (call $byte (local.get $at)) (i32.const 34)) (then (return (i32.const 0))))
    (global.set $p (i32.add (local.get $at) (i32.const 1)))
    (loop $next
      (local.set $char (call $byte (global.get $p)))
      (if (i32.eq (local.get $char) (i32.const 34)) (then (return (i32.eqz (i32.load8_u (local.get $text))))))
      (call $step)
      (if (i32.eq (local.get $char) (i32.const 92)) (then (local.set $char (call $escape))))
      (if (i32.ne (local.get $char) (i32.load8_u (local.get $text))) (then (return (i32.const 0))))
      ;; A zero that was escaped is no end of `text`.
      (if (i32.eqz (local.get $char)) (then (return (i32.const 0))))
      (local.set $text (i32.add (local.get $text) (i32.const 1)))
      (br $next))
    (unreachable))

  ;; Where the value of `key` begins in the object at `at`; 0 if it has none. Of several the last one counts.
  (func $get (param $at i32) (param $key i32) (result i32)
    (local $name i32) (local $value i32) (local $found i32)
    (global.set $p (i32.add (local.get $at) (i32.const 1)))
    (loop $next
      (call $space)
      (local.set $name (global.get $p))
      (if (i32.eqz (call $string)) (then (return (i32.const 0))))  ;; {}
      (call $space)
      (call $step)
      (call $space)
      (local.set $value (global.get $p))
      (if (call $is (local.get $name) (local.get $key)) (then (local.set $found (local.get $value))))
      (global.set $p (local.get $value))
      (drop (call $value (i32.const 0)))
      (call $space)
      (br_if $next (call $take (i32.const 44))))
    (local.get $found))

  ;; Behind the value at `at`.
  (func $behind (param $at i32) (result i32)
    (global.set $p (local.get $at))
    (drop (call $value (i32.const 0)))
    (global.get $p))

  ;; How many characters the string at `at` has.
  (func $characters (param $at i32) (result i32)
    (local $char i32) (local $count i32)
    (global.set $p (i32.add (local.get $at) (i32.const 1)))
    (loop $next
      (local.set $char (call $byte (global.get $p)))
      (if (i32.eq (local.get $char) (i32.const 34)) (then (return (local.get $count))))
      (call $step)
      ;; Neither the further bytes of a character count, nor the second half of a pair of escapes.
      (if (if (result i32) (i32.eq (local.get $char) (i32.const 92))
            (then (i32.ne (i32.and (call $escape) (i32.const 0xfc00)) (i32.const 0xdc00)))
            (else (i32.ne (i32.and (local.get $char) (i32.const 0xc0)) (i32.const 0x80))))
        (then (local.set $count (i32.add (local.get $count) (i32.const 1)))))
      (br $next))
    (unreachable))

  ;; ---- JSON-RPC 2.0 -------------------------------------------------------------------------------------------------

  (global $greeted (mut i32) (i32.const 0))

  ;; How long the id at `at` is, as it is written; 0 if it is none: a short string, or a whole number of 64 bits.
  (func $id_length (param $at i32) (result i32)
    (local $from i32) (local $value i64) (local $size i32)
    (local.set $size (i32.sub (call $behind (local.get $at)) (local.get $at)))
    (if (i32.eq (call $byte (local.get $at)) (i32.const 34))
      (then (return (select (local.get $size) (i32.const 0)
        (i32.le_u (call $characters (local.get $at)) (global.get $MAX_ID))))))
    (global.set $p (local.get $at))
    (drop (call $take (i32.const 45)))
    (local.set $from (global.get $p))
    ;; 19 digits always fit into 64 bits without a sign.
    (if (i32.gt_u (i32.sub (call $digits) (i32.const 1)) (i32.const 18)) (then (return (i32.const 0))))
    (if (i32.ne (i32.sub (global.get $p) (local.get $at)) (local.get $size)) (then (return (i32.const 0))))
    (local.set $value (call $decimal (local.get $from) (global.get $p)))
    (if (i64.gt_u (local.get $value)
          (i64.add (i64.const 0x7fffffffffffffff) (i64.extend_i32_u (i32.sub (local.get $from) (local.get $at)))))
      (then (return (i32.const 0))))
    (local.get $size))

  ;; Answers the message in $p..$stop.
  (func $message
    (local $root i32) (local $id i32) (local $method i32) (local $params i32) (local $version i32) (local $result i32)
    (local $error i32)
    (global.set $id_size (i32.const 0))
    (call $space)
    (local.set $root (global.get $p))
    (if (i32.eqz (call $value (i32.const 0))) (then (return (call $say (global.get $PARSE)))))
    (call $space)
    (if (i32.ne (global.get $p) (global.get $stop)) (then (return (call $say (global.get $PARSE)))))
    (if (i32.ne (call $byte (local.get $root)) (i32.const 123)) (then (return (call $say (global.get $INVALID)))))
    (local.set $id (call $get (local.get $root) (global.get $id_key)))
    (if (local.get $id) (then
      (global.set $id (local.get $id))
      (global.set $id_size (call $id_length (local.get $id)))))
    (local.set $method (call $get (local.get $root) (global.get $method)))
    (local.set $params (call $get (local.get $root) (global.get $params)))
    (local.set $version (call $is (call $get (local.get $root) (global.get $jsonrpc)) (global.get $2.0)))
    (if (i32.eqz (local.get $method)) (then
      (local.set $result (i32.eqz (call $get (local.get $root) (global.get $result))))
      (local.set $error (i32.eqz (call $get (local.get $root) (global.get $error))))
      ;; An answer belongs to nothing that was asked here, so its id is not ours to answer.
      (if (i32.eqz (i32.and (local.get $result) (local.get $error))) (then
        (if (i32.and (i32.ne (local.get $result) (local.get $error)) (i32.and (local.get $version)
              (i32.or (i32.ne (global.get $id_size) (i32.const 0)) (i32.eq (call $byte (local.get $id)) (i32.const 110)))))
          (then (return)))
        (global.set $id_size (i32.const 0))))))
    (if (i32.eqz (i32.and (local.get $version) (i32.eq (call $byte (local.get $method)) (i32.const 34))))
      (then (return (call $say (global.get $INVALID)))))
    (if (local.get $params) (then
      ;; { is [ with one more bit.
      (if (i32.ne (i32.or (call $byte (local.get $params)) (i32.const 32)) (i32.const 123))
        (then (return (call $say (global.get $INVALID)))))))
    (if (i32.eqz (local.get $id)) (then (return)))  ;; a notification, and none is for us
    (if (i32.eqz (global.get $id_size)) (then (return (call $say (global.get $INVALID)))))
    (call $request (local.get $method) (local.get $params)))

  (func $request (param $method i32) (param $params i32)
    (local $fits i32) (local $size i32)
    (local.set $fits (i32.or (i32.eqz (local.get $params)) (i32.eq (call $byte (local.get $params)) (i32.const 123))))
    (if (call $is (local.get $method) (global.get $protocol.hello)) (then
      (if (i32.eqz (local.get $fits)) (then (return (call $wrong (global.get $params)))))
      (return (call $greet (local.get $params)))))
    (if (i32.eqz (global.get $greeted)) (then (return (call $say (global.get $EARLY)))))
    (block $known
      (br_if $known (call $is (local.get $method) (global.get $plugin.describe)))
      (br_if $known (call $is (local.get $method) (global.get $plugin.health)))
      (br_if $known (call $is (local.get $method) (global.get $action.capabilities)))
      (br_if $known (call $is (local.get $method) (global.get $action.invoke)))
      (call $begin (global.get $UNKNOWN))
      (local.set $size (i32.sub (call $behind (local.get $method)) (local.get $method)))
      (if (i32.le_u (local.get $size) (i32.const 8192))
        (then (call $copy (local.get $method) (local.get $size)))
        (else (call $put (global.get $NULL))))
      (call $put (global.get $END3))
      (return (call $send)))
    (if (i32.eqz (local.get $fits)) (then (return (call $wrong (global.get $params)))))
    (if (call $is (local.get $method) (global.get $plugin.describe)) (then (return (call $say (global.get $DESCRIBE)))))
    (if (call $is (local.get $method) (global.get $plugin.health)) (then (return (call $say (global.get $HEALTH)))))
    (if (call $is (local.get $method) (global.get $action.capabilities)) (then (return (call $say (global.get $OPS)))))
    (call $invoke (local.get $params)))

  ;; The value of `key` in the object at `at`, which may not be there; 0, or its first byte is another than `char`: 0.
  (func $get_kind (param $at i32) (param $key i32) (param $char i32) (result i32)
    (if (i32.eqz (local.get $at)) (then (return (i32.const 0))))
    (local.set $at (call $get (local.get $at) (local.get $key)))
    (select (local.get $at) (i32.const 0) (i32.eq (call $byte (local.get $at)) (local.get $char))))

  ;; ---- Methods ------------------------------------------------------------------------------------------------------

  ;; protocol.hello
  (func $greet (param $params i32)
    (local $abi i32)
    (if (i32.eqz (call $get_kind (local.get $params) (global.get $protocol) (i32.const 34)))
      (then (return (call $wrong (global.get $protocol)))))
    (local.set $abi (call $get (local.get $params) (global.get $abi)))
    (if (i32.or (i32.eqz (call $id_length (local.get $abi))) (i32.eq (call $byte (local.get $abi)) (i32.const 34)))
      (then (return (call $wrong (global.get $abi)))))
    (global.set $greeted (i32.const 1))
    (call $say (global.get $HELLO)))

  ;; action.invoke
  (func $invoke (param $params i32)
    (local $op i32) (local $args i32) (local $name i32) (local $count i32)
    (local.set $op (call $get_kind (local.get $params) (global.get $op) (i32.const 34)))
    (if (i32.eqz (call $is (local.get $op) (global.get $hello))) (then (return (call $wrong (global.get $op)))))
    (local.set $args (call $get_kind (local.get $params) (global.get $args) (i32.const 123)))
    (if (i32.eqz (local.get $args)) (then
      (if (call $get (local.get $params) (global.get $args)) (then (return (call $wrong (global.get $args)))))))
    (local.set $name (call $get_kind (local.get $args) (global.get $name) (i32.const 34)))
    (if (i32.eqz (local.get $name)) (then (return (call $wrong (global.get $args.name)))))
    (local.set $count (call $characters (local.get $name)))
    (if (i32.gt_u (i32.sub (local.get $count) (i32.const 1)) (i32.const 199))
      (then (return (call $wrong (global.get $args.name)))))
    (call $begin (global.get $GREET))
    (call $copy (i32.add (local.get $name) (i32.const 1))
      (i32.sub (i32.sub (call $behind (local.get $name)) (local.get $name)) (i32.const 2)))
    (call $put (global.get $GREETED))
    (call $send))

  (func (export "_start")
    (loop $forever
      (call $frame)
      (call $message)
      (br $forever))))
