// Provokes the refusals of error_table.py with @azure/service-bus, and reports each as "code|retried|message". The client tries
// once more, at once, so that the result tells whether it tries again.
import { ServiceBusClient } from "@azure/service-bus";
import Long from "long";
import { connectionString, rejection, run, sleep } from "./harness.mjs";

const lockMs = Number(process.env.PARTIBUS_LOCK_MS);
const others = { "wrong-key": "PARTIBUS_CONNECTION_STRING_WRONG_KEY", "expired-token": "PARTIBUS_CONNECTION_STRING_EXPIRED", "missing-claim": "PARTIBUS_CONNECTION_STRING_LISTEN" };
const x = { body: "x" };

// Has the test change the queue.
const stage = async (path, queue) => {
  const answer = await fetch(`${process.env.PARTIBUS_STAGE_URL}/${path}/${queue}`);
  if (!answer.ok) throw new Error(`stage: ${answer.status}`);
};

const send = (client, queue, message = x) => client.createSender(queue).sendMessages(message);
const receive = (client, queue) => client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 2_000 });

async function one(receiver) {
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 20_000 });
  if (message === undefined) throw new Error("received nothing");
  return message;
}

async function sendAround(change, client, queue) {
  const sender = client.createSender(queue);
  await sender.sendMessages(x);
  await stage(change, queue);
  await sender.sendMessages(x);
}

async function receiveAround(change, client, queue) {
  const receiver = client.createReceiver(queue);
  await receiver.receiveMessages(1, { maxWaitTimeInMs: 100 });
  const waiting = rejection(receiver.receiveMessages(1, { maxWaitTimeInMs: 20_000 }));
  await sleep(100);
  await stage(change, queue);
  throw await waiting;
}

// Each throws what the client makes of the refusal.
const refusals = {
  "send-to-no-entity": send,
  "receive-from-no-entity": receive,
  "wrong-key": send,
  "expired-token": send,
  "missing-claim": send,
  "message-too-large": (client, queue) => send(client, queue, { body: Buffer.alloc(2_000_000) }),
  "send-to-disabled": send,
  "receive-from-disabled": receive,
  "send-disabled": send,
  "receive-disabled": receive,
  "disabled-beside-sender": (client, queue) => sendAround("SendDisabled", client, queue),
  "disabled-beside-receiver": (client, queue) => receiveAround("ReceiveDisabled", client, queue),
  "deleted-beside-sender": (client, queue) => sendAround("delete", client, queue),
  "deleted-beside-receiver": (client, queue) => receiveAround("delete", client, queue),
  "quota-exceeded": (client, queue) => send(client, queue, { body: Buffer.alloc(500_000) }),
  "session-state-too-large": async (client, queue) => {
    const receiver = await client.acceptSession(queue, "s");
    await receiver.setSessionState("x".repeat(1025));
  },
  "too-many-session-states": async (client, queue) => {
    for (const id of ["one", "two"]) await (await client.acceptSession(queue, id)).setSessionState("x");
  },
  "too-many-links": async (client, queue) => {
    for (let link = 0; link < 30; link++) await client.createSender(queue).createMessageBatch();
  },
  "message-lock-lost": async (client, queue) => {
    await send(client, queue);
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const message = await one(receiver);
    await one(client.createReceiver(queue)); // once the lock is lost
    await receiver.completeMessage(message);
  },
  "session-lock-lost": async (client, queue) => {
    const receiver = await client.acceptSession(queue, "s", { maxAutoLockRenewalDurationInMs: 0 });
    await sleep(lockMs + 500);
    await receiver.setSessionState("x");
  },
  "session-held": async (client, queue) => {
    await client.acceptSession(queue, "s");
    await client.acceptSession(queue, "s");
  },
  "no-session-free": (client, queue) => client.acceptNextSession(queue),
  "deferred-message-unknown": (client, queue) => client.createReceiver(queue).receiveDeferredMessages([Long.fromNumber(12_345)]),
  "scheduled-message-unknown": (client, queue) => client.createSender(queue).cancelScheduledMessages([Long.fromNumber(12_345)]),
  "batch-with-two-keys": async (client, queue) => {
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    for (const partitionKey of ["one", "two"]) batch.tryAddMessage({ ...x, partitionKey });
    await sender.sendMessages(batch);
  },
  "message-without-session": send,
  "receiver-without-session": receive,
  "receiver-beside-forwarding": receive,
  "session-of-none": (client, queue) => client.acceptSession(queue, "s"),
  "session-id-too-long": (client, queue) => client.acceptSession(queue, "s".repeat(129)),
  "send-to-dead-letters": (client, queue) => send(client, `${queue}/$deadletterqueue`),
  "dead-letter-a-dead-letter": async (client, queue) => {
    await send(client, queue);
    const receiver = client.createReceiver(queue);
    await receiver.deadLetterMessage(await one(receiver));
    const letters = client.createReceiver(queue, { subQueueType: "deadLetter" });
    await letters.deadLetterMessage(await one(letters));
  },
  "receive-from-topic": receive,
  "rule-exists": (client, topic) => client.createRuleManager(topic, "all").createRule("$Default", { subject: "x" }),
  "rule-missing": (client, topic) => client.createRuleManager(topic, "all").deleteRule("none"),
  "rule-invalid": (client, topic) => client.createRuleManager(topic, "all").createRule("wrong", { sqlExpression: "a = )" }),
  "partition-unavailable": (client, queue) => send(client, queue, { ...x, partitionKey: "k" }),
};

const scenarios = Object.fromEntries(
  Object.entries(refusals).map(([name, provoke]) => [
    name,
    async (queue) => {
      const text = others[name] ? process.env[others[name]] : connectionString;
      const client = new ServiceBusClient(text, { retryOptions: { maxRetries: 1, retryDelayInMs: 10, timeoutInMs: 15_000 } });
      try {
        const error = await rejection(provoke(client, queue));
        // A client that has tried again throws an AggregateError (AMQP contract 9.2).
        const retried = error instanceof AggregateError;
        const last = retried ? error.errors.at(-1) : error;
        return `${last.code ?? last.name}|${retried || Boolean(last.retryable)}|${last.message}`;
      } finally {
        await client.close();
      }
    },
  ]),
);
await run(scenarios);
