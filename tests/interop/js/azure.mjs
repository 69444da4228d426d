// What the scenarios of @azure/service-bus share.
import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";
import { connectionString } from "./harness.mjs";

// A scenario with a client of its own, closed afterwards.
export const withClient = (scenario, text = connectionString, options = undefined) => async (entity) => {
  const client = new ServiceBusClient(text, options);
  try {
    await scenario(client, entity);
  } finally {
    await client.close();
  }
};

export async function send(client, entity, ...messages) {
  const sender = client.createSender(entity);
  for (const message of messages) await sender.sendMessages(message);
}

export async function receiveExactly(receiver, count, withinMs = 10_000) {
  const found = [];
  const deadline = Date.now() + withinMs;
  while (found.length < count && Date.now() < deadline) {
    found.push(...(await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: 1000 })));
  }
  assert.equal(found.length, count, `received ${found.length} of ${count} messages`);
  return found;
}

export async function assertEmpty(receiver) {
  const left = await receiver.receiveMessages(10, { maxWaitTimeInMs: 500 });
  assert.deepEqual(left.map((message) => message.body), []);
}

export const numbered = (count) => Array.from({ length: count }, (_, number) => ({ body: `message ${number}`, messageId: `id-${number}` }));
export const ids = (messages) => messages.map((message) => message.messageId).sort();
