// npm's redlock, version 5 (kind=redlock) and version 4 (kind=redlock4), on ioredis, as peers: see ../README.md. A thread
// of the parent's is a chain of promises here. Options: lease=MS, for locks that are taken with lease 0 (redlock has no
// default); retry=MS, what it waits between two attempts (`retryDelay`; half of it is its jitter, as by default).
"use strict";

const { randomBytes } = require("crypto");
const fs = require("fs");
const readline = require("readline");
const Redis = require("ioredis");

const [url, ...words] = process.argv.slice(2);
const options = Object.fromEntries(words.map((word) => word.split(/=(.*)/s, 2)));
const kind = options.kind;
// More than one for a Redlock over independent servers; what `count` adds up is on the first.
const clients = url.split(",").map((server) => new Redis(server));
const [client] = clients;
const about = require(`${require("path").dirname(require.resolve("ioredis"))}/../../${kind}/package.json`);
// Version 5 has a "v" before it.
const version = about.version.replace(/^v/, "");

class Unsupported extends Error {}

// Waits as long as it takes, where redlock by itself gives up after ten attempts.
const settings = { retryCount: -1 };
if (options.retry) Object.assign(settings, { retryDelay: +options.retry, retryJitter: +options.retry / 2 });

const KINDS = {
  redlock() {
    const { default: Redlock, Lock } = require("redlock");
    const redlock = new Redlock(clients, settings);
    return {
      lock: (name, lease) => redlock.acquire([name], lease),
      once: (name, lease) => redlock.acquire([name], lease, { retryCount: 0 }),
      // A release that is refused is tried again as often as an acquire, which would be for ever.
      unlock: (lock) => redlock.release(lock, { retryCount: 0 }),
      extend: (lock, lease) => redlock.extend(lock, lease, { retryCount: 0 }),
      foreign: (name) => new Lock(redlock, [name], randomBytes(16).toString("hex"), [], Date.now() + 60_000),
      isBusy: (error) => error.name === "ExecutionError",
    };
  },
  redlock4() {
    const Redlock = require("redlock4");
    const waiting = new Redlock(clients, settings);
    const once = new Redlock(clients, { retryCount: 0 });
    return {
      lock: (name, lease) => waiting.lock(name, lease),
      once: (name, lease) => once.lock(name, lease),
      unlock: (lock) => once.unlock(lock),
      extend: (lock, lease) => once.extend(lock, lease),
      foreign: (name) => new Redlock.Lock(once, [name], randomBytes(16).toString("hex"), Date.now() + 60_000, 1),
      isBusy: (error) => error.name === "LockError",
    };
  },
};
const library = KINDS[kind]();

const microseconds = () => Math.round((performance.timeOrigin + performance.now()) * 1000);
const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

// How it is called within version 4 or 5 that a lock is busy, as opposed to anything else.
async function orBusy(attempt) {
  try {
    return await attempt;
  } catch (error) {
    if (library.isBusy(error)) return null;
    throw error;
  }
}

class Worker {
  held = new Map();
  leaseOf = (lease) => +lease || +options.lease;
  holdOf = (name) => this.held.get(name) ?? library.foreign(name);

  async lock(name, lease) {
    this.held.set(name, await library.lock(name, this.leaseOf(lease)));
    return microseconds();
  }

  // Redlock counts attempts and knows no time; so a caller that wants one has to count it.
  async try(name, wait, lease) {
    const end = Date.now() + +wait;
    for (;;) {
      const lock = await orBusy(library.once(name, this.leaseOf(lease)));
      if (lock) this.held.set(name, lock);
      if (lock || Date.now() >= end) return `${lock ? "held" : "busy"} ${microseconds()}`;
      await sleep(Math.min(200, Math.max(0, end - Date.now())));
    }
  }

  async unlock(name) {
    const lock = this.holdOf(name);
    this.held.delete(name);
    await library.unlock(lock);
    return "";
  }

  async extend(name, lease) {
    this.held.set(name, await library.extend(this.holdOf(name), +lease));
    return "";
  }

  async state() {
    return "locked=? holds=? ttl=?";
  }

  async count(name, key, times, pause, lease) {
    return this.addUp(name, key, (done) => done < +times, pause, lease);
  }

  async contend(name, key, millis, pause, lease) {
    const end = Date.now() + +millis;
    return this.addUp(name, key, () => Date.now() < end, pause, lease);
  }

  // For the benchmarks.
  async cycles(name, millis, hold, pause, lease, file) {
    const end = performance.now() + +millis;
    const visits = [];
    while (performance.now() < end) {
      const lock = await library.lock(name, this.leaseOf(lease));
      const entered = process.hrtime.bigint();
      if (+hold) await sleep(+hold / 1000);
      visits.push(entered, process.hrtime.bigint());
      await library.unlock(lock);
      if (+pause) await sleep(+pause / 1000);
    }
    if (file !== "-") fs.writeFileSync(file, new Uint8Array(BigUint64Array.from(visits).buffer));
    return visits.length / 2;
  }

  async addUp(name, key, more, pause, lease) {
    let done = 0;
    for (; more(done); done += 1) {
      await this.lock(name, lease);
      // Two commands, so that nothing but the lock makes it exact.
      const value = +((await client.get(key)) ?? 0);
      await client.set(key, value + 1);
      await client.rpush(`${key}:by`, kind);
      await this.unlock(name);
      // Timers are in whole milliseconds; what is shorter is at least left to the others.
      await (+pause >= 1000 ? sleep(+pause / 1000) : new Promise(setImmediate));
    }
    return done;
  }
}

const VERBS = new Set(["lock", "try", "unlock", "extend", "state", "count", "contend", "cycles"]);

async function answer(worker, thread, verb, words) {
  try {
    if (!VERBS.has(verb)) throw new Unsupported();
    return `${thread} ok ${await worker[verb](...words)}`.trimEnd();
  } catch (error) {
    if (error instanceof Unsupported) return `${thread} error unsupported`;
    // The server that answered tells why; the library's own message only counts.
    const attempts = await Promise.all(error.attempts?.map?.((attempt) => attempt) ?? []);
    const causes = attempts.flatMap((stats) => [...(stats.votesAgainst?.values() ?? [])]);
    const text = [error, ...causes].map((one) => `${one.name}: ${one.message}`).join("; ");
    return `${thread} error ${text.replace(/\s+/g, " ")}`;
  }
}

async function main() {
  await Promise.all(clients.map((server) => server.ping()));
  process.stdout.write(`ready redlock ${version}\n`);
  const chains = new Map();
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const [thread, verb, ...rest] = line.split(" ");
    const { worker, last } = chains.get(thread) ?? { worker: new Worker(), last: Promise.resolve() };
    const next = last
      .then(() => answer(worker, thread, verb, rest))
      .then((text) => process.stdout.write(`${text}\n`));
    chains.set(thread, { worker, last: next });
  });
  // At once, with nothing released.
  lines.on("close", () => process.exit(0));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
