// Runs scenarios a few at a time and prints one JSON line for each: {"scenario", "ok", "detail"}.
import assert from "node:assert/strict";

const AT_ONCE = 5;
const WITHIN_MS = 40_000;

export const prefix = process.env.PARTIBUS_QUEUE_PREFIX;
export const connectionString = process.env.PARTIBUS_CONNECTION_STRING;
export const connectionStringWrongKey = process.env.PARTIBUS_CONNECTION_STRING_WRONG_KEY;
export const lockShortMs = Number(process.env.PARTIBUS_LOCK_SHORT_S) * 1000;

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Rejects when `promise` has not settled in time; says what was waited for.
export function within(ms, promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing within ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

export async function rejection(promise) {
  let outcome;
  try {
    outcome = await promise;
  } catch (error) {
    return error;
  }
  return assert.fail(`no error, but ${JSON.stringify(outcome)}`);
}

function report(scenario, ok, detail) {
  process.stdout.write(JSON.stringify({ scenario, ok, detail }) + "\n");
}

// `scenarios` maps a name to a function of the scenario's queue. Those asked for are run; an unknown name is a failure. A scenario
// may return a string, which is reported.
export async function run(scenarios) {
  process.on("unhandledRejection", (error) => report("no-unhandled-errors", false, String(error?.stack ?? error)));
  const names = process.env.PARTIBUS_SCENARIOS.split(",");
  const worker = async () => {
    for (let name = names.shift(); name !== undefined; name = names.shift()) {
      try {
        assert.ok(scenarios[name], "this scenario is not written");
        const detail = await within(WITHIN_MS, scenarios[name](prefix + name), name);
        report(name, true, typeof detail === "string" ? detail : "");
      } catch (error) {
        report(name, false, String(error?.stack ?? error));
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  process.exit(0);
}
