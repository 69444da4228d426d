// @azure/service-bus, unchanged, offers more than a throttled namespace takes: an application that sends again what was refused.
import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";
import { connectionString, run, sleep } from "./harness.mjs";

const queue = process.env.PARTIBUS_QUEUE;
const seconds = Number(process.env.PARTIBUS_SECONDS);
const batch = Number(process.env.PARTIBUS_BATCH);
const everyMs = (1000 * batch) / Number(process.env.PARTIBUS_OFFERED_PER_S);

const scenarios = {
  // Returns [number of a batch, when it was accepted] for each accepted batch, and how many attempts were refused.
  overload: async () => {
    const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
    const accepted = [];
    const again = [];
    let batches = 0;
    let refused = 0;
    try {
      const sender = client.createSender(queue);
      const underWay = new Set();
      let untilMs = Infinity; // until the first acceptance
      const attempt = async (number) => {
        const messages = Array.from({ length: batch }, (_, place) => ({ body: "x", messageId: `js-${number}-${place}` }));
        try {
          await sender.sendMessages(messages);
          accepted.push([number, Date.now()]);
          untilMs = Math.min(untilMs, Date.now() + 1000 * seconds);
        } catch (error) {
          assert.equal(error.code, "ServiceBusy", String(error));
          assert.match(error.message, /Error code: 50009\. Please wait 2 seconds and try again\./);
          refused += 1;
          again.push(number);
        }
      };
      let failure;
      for (let due = Date.now(); Date.now() < untilMs && !failure; due += everyMs) {
        await sleep(Math.max(due - Date.now(), 0));
        const one = attempt(again.shift() ?? batches++)
          .catch((error) => (failure = error))
          .finally(() => underWay.delete(one));
        underWay.add(one);
      }
      await Promise.all(underWay);
      if (failure) throw failure;
    } finally {
      await client.close();
    }
    return JSON.stringify({ accepted, refused });
  },
};

await run(scenarios);
