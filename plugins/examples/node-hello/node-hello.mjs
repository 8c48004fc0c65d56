// A plugin for utter-runner in one file of JavaScript: Node 18 or newer, no packages.
//
// The runner starts this program, writes requests to its stdin and reads answers from its stdout. Copy the file, put
// your own ops into `ops`, and leave the rest alone. protocol/PROTOCOL.md says what each message means.

const MAX_HEADER = 8 * 1024;
const MAX_JUNK = 64 * 1024;
const MAX_FRAME = 16 * 1024 * 1024;

const PARSE_ERROR = -32700;
const INVALID_REQUEST = -32600;
const METHOD_NOT_FOUND = -32601;
const INVALID_PARAMS = -32602;
const INTERNAL_ERROR = -32603;
const CANCELLED = -32002;

// ---- What this plugin does ------------------------------------------------------------------------------------------

const nameSchema = { type: "string", minLength: 1, maxLength: 200 };

// Each op says what it does to the world (`side_effect`: none, local, external or destructive) and what its arguments
// look like (`schema`, a JSON Schema that the runner enforces). `run` gets the arguments and an AbortSignal, and returns
// one sentence for the user.
const ops = {
  hello: {
    side_effect: "none",
    needs_confirm: false,
    description: "Greets someone.",
    schema: { type: "object", properties: { name: nameSchema }, required: ["name"], additionalProperties: false },
    run: ({ name }) => `Hello, ${name}!`,
  },
  hello_later: {
    side_effect: "none",
    needs_confirm: false,
    description: "Greets someone after a while; shows how an op is cancelled.",
    schema: {
      type: "object",
      properties: { name: nameSchema, seconds: { type: "number", minimum: 0, maximum: 60 } },
      required: ["name", "seconds"],
      additionalProperties: false,
    },
    run: async ({ name, seconds }, signal) => {
      await wait(seconds * 1000, signal);
      return `Hello at last, ${name}!`;
    },
  },
};

function wait(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new RpcError(CANCELLED, "the request was cancelled"));
    });
  });
}

// ---- Methods --------------------------------------------------------------------------------------------------------

const methods = {
  "protocol.hello": () => ({
    protocol: "1.0",
    abi: 1,
    plugin: { name: "node-hello", version: "0.1.0", kind: "action" },
    transport: "stdio",
    provides: ["action.invoke@1"],
    requires: [],
    permissions: [],
  }),
  "plugin.describe": () => ({ methods: Object.keys(methods), streams: [] }),
  "plugin.health": () => ({ status: "ok", detail: "" }),
  "action.capabilities": () => ({
    ops: Object.entries(ops).map(([op, { run, ...described }]) => ({ op, ...described })),
  }),
  "action.invoke": async ({ op, args = {} }, signal) => {
    // An op may be named with or without the prefix.
    const name = typeof op === "string" ? op.replace(/^action\./, "") : "";
    if (!Object.hasOwn(ops, name)) {
      throw new RpcError(INVALID_PARAMS, `node-hello has no op ${JSON.stringify(op)}`, { field: "op" });
    }
    return { ok: true, detail: await ops[name].run(args, signal), data: {} };
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

async function receive(body) {
  let message;
  try {
    // `fatal` refuses bytes that are not UTF-8; `ignoreBOM` keeps a byte order mark, which JSON.parse then refuses.
    message = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body));
  } catch (error) {
    return answerError(null, new RpcError(PARSE_ERROR, `not JSON in UTF-8: ${error.message}`));
  }
  const { jsonrpc, id, method, params = {} } = message ?? {};
  const hasId = Number.isInteger(id) || typeof id === "string";
  const isObject = typeof params === "object" && params !== null && !Array.isArray(params);
  if (jsonrpc !== "2.0" || typeof method !== "string" || !isObject || (id !== undefined && !hasId)) {
    return answerError(hasId ? id : null, new RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 request with named params"));
  }
  if (id === undefined) {
    if (method === "$/cancel") running.get(params.id)?.abort();
    return; // other notifications are not for us
  }
  if (running.has(id)) {
    return answerError(id, new RpcError(INVALID_REQUEST, "a request with this id is not answered yet", { field: "id" }));
  }
  const controller = new AbortController();
  running.set(id, controller);
  try {
    if (!Object.hasOwn(methods, method)) {
      throw new RpcError(METHOD_NOT_FOUND, `node-hello has no method ${method}`, { method });
    }
    const result = await methods[method](params, controller.signal);
    send({ jsonrpc: "2.0", id, result });
  } catch (error) {
    answerError(id, error);
  } finally {
    running.delete(id);
  }
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

// Returns where a header starts and ends and how long its body is, or null if it is not complete yet.
function readHeader(bytes) {
  // Header parts are ASCII; latin1 keeps one character for each byte.
  const text = bytes.toString("latin1", 0, MAX_JUNK + MAX_HEADER);
  const start = text.search(/content-(length|type)[ \t]*:/i);
  if (start > MAX_JUNK || (start < 0 && text.length > MAX_JUNK)) throw new Error("too many bytes that belong to no frame");
  if (start < 0) return null;
  const header = text.slice(start, start + MAX_HEADER);
  const blank = /\r?\n\r?\n/.exec(header);
  if (blank === null) {
    if (header.length === MAX_HEADER) throw new Error("the header part of a frame is too long");
    return null;
  }
  const lengths = new Set();
  for (const line of header.slice(0, blank.index).split("\n")) {
    const [name, value = ""] = line.split(/:(.*)/);
    if (name.trim().toLowerCase() === "content-length") lengths.add(value.trim());
  }
  const [length] = lengths;
  if (lengths.size !== 1 || !/^[0-9]{1,15}$/.test(length)) throw new Error("not exactly one Content-Length");
  if (Number(length) > MAX_FRAME) throw new Error(`a frame of ${length} bytes is too large`);
  return { start, end: start + blank.index + blank[0].length, length: Number(length) };
}

// ---- The process ----------------------------------------------------------------------------------------------------

console.log = console.error; // stdout is for frames; a stray console.log must not end up there

if (process.stdin.isTTY) {
  console.error("node-hello is a plugin for utter-runner: name it in a [[plugin]] table of the runner's config.");
  process.exit(2);
}

const reader = new FrameReader();
process.stdin.on("data", (chunk) => {
  try {
    for (const body of reader.push(chunk)) receive(body);
  } catch (error) {
    console.error(`the runner broke the framing: ${error.message}`);
    process.exit(1);
  }
});
process.stdin.on("end", () => process.exit(0)); // the runner wants us gone
process.stdout.on("error", () => process.exit(0)); // nobody reads any more
process.on("SIGTERM", () => process.exit(0));
process.on("SIGINT", () => {}); // Ctrl-C is for the runner, which then ends us
