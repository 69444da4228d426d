// @azure/service-bus, unchanged, with queues that forward: "first" to "last", and the dead letters of "last" to "dead".
import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";
import { connectionString, rejection, run } from "./harness.mjs";

const scenarios = {
  forwarding: async () => {
    const client = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0 } });
    try {
      const sent = Array.from({ length: 20 }, (_, number) => ({
        body: `m${number}`,
        messageId: `id-${number}`,
        partitionKey: `k${number % 3}`,
        applicationProperties: { number },
      }));
      const sender = client.createSender("first");
      for (const message of sent) await sender.sendMessages(message);
      const last = client.createReceiver("last");
      const found = [];
      while (found.length < sent.length) {
        const more = await last.receiveMessages(sent.length - found.length, { maxWaitTimeInMs: 20_000 });
        assert.ok(more.length, `only ${found.length} of ${sent.length} came`);
        found.push(...more);
        for (const message of more) await last.completeMessage(message);
      }
      assert.deepEqual(found.map((message) => message.messageId).sort(), sent.map((message) => message.messageId).sort());
      for (const message of found) {
        const { partitionKey, applicationProperties } = sent.find(({ messageId }) => messageId === message.messageId);
        assert.deepEqual([message.partitionKey, message.applicationProperties, message.deliveryCount], [partitionKey, applicationProperties, 0]);
      }
      const refused = await rejection(client.createReceiver("first").receiveMessages(1, { maxWaitTimeInMs: 5_000 }));
      assert.match(refused.message, /InvalidOperationError.*auto-forwarding enabled/);
      assert.equal(refused.retryable, false);
    } finally {
      await client.close();
    }
  },
  "dead-letters": async () => {
    const client = new ServiceBusClient(connectionString);
    try {
      const last = client.createReceiver("last-of-dead");
      await client.createSender("last-of-dead").sendMessages({ body: "x", messageId: "dead" });
      const [message] = await last.receiveMessages(1, { maxWaitTimeInMs: 20_000 });
      await last.deadLetterMessage(message, { deadLetterReason: "mine", deadLetterErrorDescription: "why" });
      const [dead] = await client.createReceiver("dead").receiveMessages(1, { maxWaitTimeInMs: 20_000 });
      assert.deepEqual([dead.messageId, dead.deadLetterReason, dead.deadLetterSource], ["dead", "mine", "last-of-dead"]);
      assert.equal(dead.deliveryCount, 0);
      assert.equal(dead.enqueuedSequenceNumber, message.sequenceNumber.toNumber());
    } finally {
      await client.close();
    }
  },
};

await run(scenarios);
