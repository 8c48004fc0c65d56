// A plugin for utter-runner that hears the microphone, in one file of JavaScript: Node 18 or newer, no packages.
//
// It began as a copy of ../node-hello: its ops are new, and the audio ring below them. The rest was left alone.
// protocol/PROTOCOL.md says what each message means, and under "The audio ring" how the ring is read.

import fs from "node:fs";
import net from "node:net";

const MAX_HEADER = 8 * 1024;
const MAX_JUNK = 64 * 1024;
const MAX_FRAME = 16 * 1024 * 1024;
const MAX_DEPTH = 256;
const MAX_ID = 1024;

const PARSE_ERROR = -32700;
const INVALID_REQUEST = -32600;
const METHOD_NOT_FOUND = -32601;
const INVALID_PARAMS = -32602;
const INTERNAL_ERROR = -32603;

// ---- What this plugin does ------------------------------------------------------------------------------------------

const ops = {
  microphone_level: {
    side_effect: "none",
    needs_confirm: false,
    description: "Tells how loud the last second was.",
    schema: { type: "object", properties: {}, additionalProperties: false },
    run: () => {
      if (microphone === null) throw new Error(`there is no microphone: ${silence}`);
      microphone.listen(); // what has been written since the last wake-up
      const { peak, rms } = microphone.level();
      const { heard, lost, at, ring } = microphone;
      const decibels = (level) => `${(20 * Math.log10(level)).toFixed(1)} dB`;
      const detail = peak > 0 ? `The peak is ${decibels(peak)}, the mean ${decibels(rms)}.` : "It is silent.";
      return { detail, data: { peak, rms, heard, lost, at, generation: ring.generation } };
    },
  },
};

// Hears every frame of the ring, and keeps the last second.
class Microphone {
  heard = 0;
  lost = 0;

  constructor(ring, wake) {
    this.ring = ring;
    this.at = ring.position; // the next frame to be heard
    this.second = new Float32Array(ring.rate); // frame n lies at n % rate
    const pipe = new net.Socket({ fd: wake, readable: true, writable: false });
    // What can be read there says nothing but: look at the ring. It ends with the runner, and so do we.
    pipe.on("data", () => this.listen());
    pipe.on("error", (error) => console.error(`the wake pipe broke: ${error.message}`));
  }

  listen() {
    for (let position; this.at < (position = this.ring.position); ) {
      const count = Math.min(position - this.at, this.ring.rate);
      const samples = this.ring.read(this.at, count);
      if (samples === null) {
        // We were too slow. The frames are gone; the writer does not wait for us.
        const oldest = this.ring.oldest;
        this.lost += oldest - this.at;
        this.at = oldest;
        console.error(`lost ${this.lost} frames so far`);
      } else {
        samples.forEach((sample, n) => (this.second[(this.at + n) % this.ring.rate] = sample));
        this.heard += count;
        this.at += count;
      }
    }
  }

  level() {
    let peak = 0;
    let squares = 0;
    for (const sample of this.second) {
      peak = Math.max(peak, Math.abs(sample));
      squares += sample * sample;
    }
    return { peak, rms: Math.sqrt(squares / this.second.length) };
  }
}

// ---- The audio ring -------------------------------------------------------------------------------------------------

const CLAIMED = 64;
const POSITION = 72;
const GENERATION = 80;

// The ring that this process inherited, read with pread(2): Node maps no memory.
class Ring {
  #fd;
  #headerSize;
  #capacity;
  #counter = Buffer.alloc(8);

  constructor(fd) {
    const header = Buffer.alloc(64);
    fs.readSync(fd, header, 0, header.length, 0);
    const [version, headerSize, format, rate, channels] = [8, 12, 16, 20, 24].map((at) => header.readUInt32LE(at));
    if (header.toString("latin1", 0, 8) !== "UTTRRING" || version !== 1 || format !== 1 || channels !== 1) {
      throw new Error("not an audio ring of version 1 with 32-bit floats and one channel");
    }
    this.rate = rate;
    this.#fd = fd;
    this.#headerSize = headerSize;
    this.#capacity = Number(header.readBigUInt64LE(32));
  }

  // A field of 64 bits, which may change while it is copied: it is right when two readings agree.
  #load(offset) {
    for (let before = null; ; ) {
      fs.readSync(this.#fd, this.#counter, 0, 8, offset);
      const now = this.#counter.readBigUInt64LE();
      if (now === before) return Number(now);
      before = now;
    }
  }

  // How many frames have been written, from 0.
  get position() {
    return this.#load(POSITION);
  }

  // How often the microphone was opened again.
  get generation() {
    return this.#load(GENERATION);
  }

  // The first frame that the writer has not begun to overwrite.
  get oldest() {
    return Math.max(0, this.#load(CLAIMED) - this.#capacity);
  }

  // Returns frames that lie before `position`, or null if they are not there any more.
  read(start, count) {
    if (start < this.oldest) return null;
    const samples = new Float32Array(count);
    const bytes = new Uint8Array(samples.buffer);
    const slot = start % this.#capacity;
    const first = Math.min(count, this.#capacity - slot); // the rest lies at the beginning
    this.#copy(bytes.subarray(0, 4 * first), slot);
    this.#copy(bytes.subarray(4 * first), 0);
    // After the copy: was the writer there meanwhile?
    return start < this.oldest ? null : samples;
  }

  #copy(bytes, slot) {
    for (let done = 0; done < bytes.length; ) {
      const got = fs.readSync(this.#fd, bytes, done, bytes.length - done, this.#headerSize + 4 * slot + done);
      if (got === 0) throw new Error("the audio ring has been cut short");
      done += got;
    }
  }
}

// The runner passes on the ring to those whose manifest requires it and has the permission `microphone`.
let microphone = null;
let silence = "this process inherited no audio ring; the runner's log says why";
const { UTTER_AUDIO_RING_FD: ringFd, UTTER_AUDIO_WAKE_FD: wakeFd } = process.env;
try {
  if (ringFd && wakeFd) microphone = new Microphone(new Ring(Number(ringFd)), Number(wakeFd));
} catch (error) {
  silence = error.message;
}

// ---- Methods --------------------------------------------------------------------------------------------------------

const methods = {
  "protocol.hello": () => ({
    protocol: "1.0",
    abi: 1,
    plugin: { name: "node-level", version: "0.1.0", kind: "action" },
    transport: "stdio",
    provides: ["action.invoke@1"],
    requires: ["host.audio.ringbuffer@1"],
    permissions: ["microphone"],
  }),
  "plugin.describe": () => ({ methods: Object.keys(methods), streams: [] }),
  "plugin.health": () => ({ status: microphone ? "ok" : "degraded", detail: microphone ? "" : silence }),
  "action.capabilities": () => ({
    ops: Object.entries(ops).map(([op, { run, ...described }]) => ({ op, ...described })),
  }),
  "action.invoke": async ({ op, args = {} }, signal) => {
    // An op may be named with or without the prefix.
    const name = typeof op === "string" ? op.replace(/^action\./, "") : "";
    if (!Object.hasOwn(ops, name)) {
      throw new RpcError(INVALID_PARAMS, `node-level has no op ${JSON.stringify(op)}`, { field: "op" });
    }
    return { ok: true, ...(await ops[name].run(args, signal)) };
  },
};

// ---- JSON-RPC 2.0 ---------------------------------------------------------------------------------------------------

class RpcError extends Error {
  constructor(code, message, data) {
    super(message);
    this.code = code;
    this.data = data;
  }
}

const running = new Map(); // id -> AbortController of a request that is not answered yet
let greeted = false; // protocol.hello has been answered

async function receive(body) {
  let message;
  try {
    // `fatal` refuses bytes that are not UTF-8; `ignoreBOM` keeps a byte order mark, which JSON.parse then refuses.
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
    if (depth(text) > MAX_DEPTH) throw new Error(`more than ${MAX_DEPTH} levels`);
    message = JSON.parse(text);
  } catch (error) {
    return answerError(null, new RpcError(PARSE_ERROR, `not JSON in UTF-8: ${error.message}`));
  }
  const { jsonrpc, id, method, params = {}, result, error } = message ?? {};
  // Integers beyond 2^53 cannot be given back: JavaScript rounds them.
  const hasId = Number.isSafeInteger(id) || (typeof id === "string" && [...id].length <= MAX_ID);
  if (jsonrpc !== "2.0" || (method === undefined ? result === error : typeof method !== "string")) {
    return answerError(hasId ? id : null, new RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 message"));
  }
  if (method === undefined) return; // an answer, and this plugin asks nothing
  if (id === undefined) {
    if (method === "$/cancel") running.get(params?.id)?.abort();
    return; // other notifications are not for us
  }
  if (!hasId) return answerError(null, new RpcError(INVALID_REQUEST, "not an id that can be given back"));
  if (running.has(id)) {
    return answerError(id, new RpcError(INVALID_REQUEST, "a request with this id is not answered yet", { field: "id" }));
  }
  const controller = new AbortController();
  running.set(id, controller);
  try {
    if (!greeted && !method.startsWith("plugin.") && method !== "protocol.hello") {
      throw new RpcError(INVALID_REQUEST, "protocol.hello comes first");
    }
    if (!Object.hasOwn(methods, method)) {
      throw new RpcError(METHOD_NOT_FOUND, `node-level has no method ${method}`, { method });
    }
    if (typeof params !== "object" || params === null || Array.isArray(params)) {
      throw new RpcError(INVALID_PARAMS, "params must be an object");
    }
    const result = await methods[method](params, controller.signal);
    greeted ||= method === "protocol.hello";
    send({ jsonrpc: "2.0", id, result });
  } catch (error) {
    answerError(id, error);
  } finally {
    running.delete(id);
  }
}

// How deep arrays and objects nest in a JSON text.
function depth(text) {
  let now = 0;
  let most = 0;
  let inString = false;
  for (let at = 0; at < text.length; at++) {
    const char = text[at];
    if (inString) {
      if (char === "\\") at++;
      else inString = char !== '"';
    } else if (char === '"') inString = true;
    else if (char === "[" || char === "{") most = Math.max(most, ++now);
    else if (char === "]" || char === "}") now--;
  }
  return most;
}

function answerError(id, error) {
  const known = error instanceof RpcError;
  if (!known) console.error(error);
  const { code, message, data } = known ? error : new RpcError(INTERNAL_ERROR, `${error.name}: ${error.message}`);
  send({ jsonrpc: "2.0", id, error: data === undefined ? { code, message } : { code, message, data } });
}

function send(message) {
  const body = Buffer.from(JSON.stringify(message));
  // One write, so that no other write can come between a header and its body.
  process.stdout.write(Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]));
}

// ---- Content-Length frames ------------------------------------------------------------------------------------------

// Turns chunks, however they are cut, into the bodies of frames. Throws what cannot be repaired.
class FrameReader {
  #chunks = [];
  #size = 0;
  #wanted = 0; // how many bytes there must be before it is worth looking again

  push(chunk) {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    if (this.#size < this.#wanted) return [];
    let rest = Buffer.concat(this.#chunks);
    const bodies = [];
    this.#wanted = 0;
    for (let header; (header = readHeader(rest)) !== null; ) {
      const end = header.end + header.length;
      if (rest.length < end) {
        this.#wanted = end;
        break;
      }
      if (header.start > 0) console.error(`skipped ${header.start} bytes on stdin that belong to no frame`);
      bodies.push(rest.subarray(header.end, end));
      rest = rest.subarray(end);
    }
    this.#chunks = [rest];
    this.#size = rest.length;
    return bodies;
  }
}

// The position in the stream is lost. `kind` is the name that PROTOCOL.md gives to what happened.
class FramingError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

// Returns where a header starts and ends and how long its body is, or null if it is not complete yet.
function readHeader(bytes) {
  // Header parts are ASCII; latin1 keeps one character for each byte.
  const text = bytes.toString("latin1", 0, MAX_JUNK + MAX_HEADER);
  const start = text.search(/content-(length|type)[ \t]*:/i);
  if (start > MAX_JUNK || (start < 0 && text.length > MAX_JUNK)) {
    throw new FramingError("junk_too_large", "too many bytes that belong to no frame");
  }
  if (start < 0) return null;
  if (text.slice(0, start).endsWith("\u00ef\u00bb\u00bf")) {
    throw new FramingError("bom", "a byte order mark stands before a header");
  }
  const header = text.slice(start, start + MAX_HEADER);
  const blank = /\r?\n\r?\n/.exec(header);
  if (blank === null) {
    if (header.length === MAX_HEADER) throw new FramingError("header_too_large", "the header part of a frame is too long");
    return null;
  }
  const length = readLength(header.slice(0, blank.index).split(/\r?\n/));
  return { start, end: start + blank.index + blank[0].length, length };
}

function readLength(lines) {
  const lengths = new Set();
  for (const line of lines) {
    const [, name, value] = /^[ \t]*([^ \t:]+)[ \t]*:(.*)$/.exec(line) ?? [];
    if (name === undefined) throw new FramingError("malformed_header", `not a header line: ${line.slice(0, 80)}`);
    if (/^content-length$/i.test(name)) lengths.add(value.trim());
    const charset = /^content-type$/i.test(name) ? /;[ \t]*charset[ \t]*=[ \t]*"?([^";]*)/i.exec(value) : null;
    if (charset && !/^utf-?8$/i.test(charset[1].trim())) {
      throw new FramingError("bad_content_type", `the charset must be utf-8, not ${charset[1].slice(0, 40)}`);
    }
  }
  if (lengths.size === 0) throw new FramingError("missing_length", "a header part without Content-Length");
  for (const length of lengths) {
    if (!/^[0-9]+$/.test(length)) throw new FramingError("bad_length", `not a length: ${length.slice(0, 40)}`);
  }
  const numbers = new Set([...lengths].map(Number));
  if (numbers.size > 1) throw new FramingError("conflicting_length", "two Content-Length headers differ");
  const [length] = numbers;
  if (length > MAX_FRAME) throw new FramingError("frame_too_large", `a frame of ${length} bytes is too large`);
  return length;
}

// ---- The process ----------------------------------------------------------------------------------------------------

console.log = console.error; // stdout is for frames; a stray console.log must not end up there

if (process.stdin.isTTY) {
  console.error("node-level is a plugin for utter-runner: name it in a [[plugin]] table of the runner's config.");
  process.exit(2);
}

const reader = new FrameReader();
process.stdin.on("data", (chunk) => {
  try {
    for (const body of reader.push(chunk)) receive(body);
  } catch (error) {
    if (!(error instanceof FramingError)) throw error;
    console.error(`the runner broke the framing: ${error.message}`);
    answerError(null, new RpcError(INVALID_REQUEST, error.message, { framing: error.kind }));
    process.stdin.pause();
    process.stdout.end(() => process.exit(1));
  }
});
process.stdin.on("end", () => process.exit(0)); // the runner wants us gone
process.stdout.on("error", () => process.exit(0)); // nobody reads any more
process.on("SIGTERM", () => process.exit(0));
process.on("SIGINT", () => {}); // Ctrl-C is for the runner, which then ends us
