// @azure/service-bus, unchanged, against the running broker.
import assert from "node:assert/strict";
import { ServiceBusClient } from "@azure/service-bus";
import { assertEmpty, ids, numbered, receiveExactly, send, withClient } from "./azure.mjs";
import { connectionString, connectionStringWrongKey, lockShortMs, rejection, run, sleep } from "./harness.mjs";

const deadLetters = (client, queue) => client.createReceiver(queue, { subQueueType: "deadLetter" });

// Settle a message with changed properties and give back what the next look at it shows.
async function changed(client, queue, settle, fetch) {
  await send(client, queue, { body: "x", applicationProperties: { kept: "yes", replaced: "old" } });
  const receiver = client.createReceiver(queue);
  const [message] = await receiveExactly(receiver, 1);
  await settle(receiver, message);
  const next = await fetch(receiver, message);
  assert.deepEqual(
    { kept: next.applicationProperties.kept, replaced: next.applicationProperties.replaced, added: next.applicationProperties.added },
    { kept: "yes", replaced: "new", added: 5 },
  );
  assert.equal(next.body, "x");
  return next;
}
const changes = { replaced: "new", added: 5 };

const scenarios = {
  // Without a message id: the broker gives one, for this client's receiver stumbles without.
  "send-one": async (client, queue) => {
    await send(client, queue, { body: { a: [1, "two", null] }, subject: "greeting", applicationProperties: { whole: 7, fraction: 1.5, yes: true } });
    const receiver = client.createReceiver(queue);
    const [message] = await receiveExactly(receiver, 1);
    assert.deepEqual(message.body, { a: [1, "two", null] });
    assert.equal(message.subject, "greeting");
    assert.deepEqual({ ...message.applicationProperties }, { whole: 7, fraction: 1.5, yes: true });
    assert.equal(message.deliveryCount, 0);
    assert.ok(message.messageId);
    assert.ok(message.lockedUntilUtc > new Date());
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
    await receiver.close();
  },
  "send-many": async (client, queue) => {
    await send(client, queue, ...numbered(60));
    const receiver = client.createReceiver(queue);
    const found = await receiveExactly(receiver, 60);
    await Promise.all(found.map((message) => receiver.completeMessage(message)));
    assert.deepEqual(ids(found), ids(numbered(60)));
    await assertEmpty(receiver);
  },
  "send-batch": async (client, queue) => {
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    for (const message of numbered(100)) assert.ok(batch.tryAddMessage(message));
    await sender.sendMessages(batch);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const found = await receiveExactly(receiver, 100);
    assert.deepEqual(ids(found), ids(numbered(100)));
    assert.ok(found.every((message) => message.body.startsWith("message ")));
  },
  "receive-and-delete": async (client, queue) => {
    await send(client, queue, ...numbered(10));
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(ids(await receiveExactly(receiver, 10)), ids(numbered(10)));
    await receiver.close();
    await assertEmpty(client.createReceiver(queue));
  },
  "complete": async (client, queue) => {
    await send(client, queue, ...numbered(5));
    const receiver = client.createReceiver(queue);
    for (const message of await receiveExactly(receiver, 5)) await receiver.completeMessage(message);
    await receiver.close();
    const other = client.createReceiver(queue);
    await assertEmpty(other);
    assert.deepEqual(await other.peekMessages(10), []);
  },
  "abandon": async (client, queue) => {
    await send(client, queue, { body: "again" });
    const receiver = client.createReceiver(queue);
    for (const attempt of [0, 1, 2]) {
      const [message] = await receiveExactly(receiver, 1);
      assert.equal(message.deliveryCount, attempt);
      await receiver.abandonMessage(message);
    }
    const [message] = await receiveExactly(receiver, 1);
    assert.equal(message.deliveryCount, 3);
    await receiver.completeMessage(message);
  },
  "abandon-with-properties": async (client, queue) => {
    const settle = (receiver, message) => receiver.abandonMessage(message, changes);
    const next = await changed(client, queue, settle, async (receiver) => (await receiveExactly(receiver, 1))[0]);
    assert.equal(next.deliveryCount, 1);
  },
  "defer-with-properties": async (client, queue) => {
    const settle = (receiver, message) => receiver.deferMessage(message, changes);
    await changed(client, queue, settle, async (receiver, message) => (await receiver.receiveDeferredMessages(message.sequenceNumber))[0]);
  },
  "dead-letter-with-properties": async (client, queue) => {
    const settle = (receiver, message) => receiver.deadLetterMessage(message, { deadLetterReason: "r", deadLetterErrorDescription: "d", ...changes });
    const dead = await changed(client, queue, settle, async () => (await receiveExactly(deadLetters(client, queue), 1))[0]);
    assert.equal(dead.deadLetterReason, "r");
  },
  "defer-and-fetch": async (client, queue) => {
    await send(client, queue, { body: "later", partitionKey: "k" }, { body: "later still", partitionKey: "k" });
    const receiver = client.createReceiver(queue);
    const deferred = await receiveExactly(receiver, 2);
    for (const message of deferred) await receiver.deferMessage(message);
    await assertEmpty(receiver);
    const fetched = await receiver.receiveDeferredMessages(deferred.map((message) => message.sequenceNumber));
    assert.deepEqual(fetched.map((message) => message.body), ["later", "later still"]);
    assert.deepEqual(fetched.map((message) => message.deliveryCount), [1, 1]);
    for (const message of fetched) await receiver.completeMessage(message);
    assert.deepEqual(await client.createReceiver(queue).peekMessages(10), []);
  },
  // This client copies the properties of a batch's first message to the envelope.
  "duplicates": async (client, queue) => {
    const sender = client.createSender(queue);
    for (const body of ["first", "second"]) await sender.sendMessages({ body, messageId: "a" });
    for (const text of ["batch", "batch again"]) {
      await sender.sendMessages(["a", "b", "c", "d"].map((messageId) => ({ body: `${text} ${messageId}`, messageId })));
    }
    await sender.sendMessages({ body: "another key", messageId: "a", partitionKey: "k" });
    const receiver = client.createReceiver(queue);
    const found = await receiveExactly(receiver, 5);
    assert.deepEqual(found.map((message) => message.body).sort(), ["another key", "batch b", "batch c", "batch d", "first"]);
    for (const message of found) await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },
  "schedule-and-cancel": async (client, queue) => {
    const sender = client.createSender(queue);
    const soon = new Date(Date.now() + 3_000);
    const late = new Date(Date.now() + 3_600_000);
    const messages = [{ body: "0" }, { body: "1", partitionKey: "a" }, { body: "2", partitionKey: "b" }];
    const numbers = await sender.scheduleMessages(messages, soon);
    assert.equal(new Set(numbers.map(String)).size, 3);
    await sender.sendMessages({ body: "3", scheduledEnqueueTimeUtc: soon });
    const later = await sender.scheduleMessages([{ body: "late" }, { body: "later", partitionKey: "a" }], late);
    const receiver = client.createReceiver(queue);
    const waiting = (await receiver.peekMessages(10)).find((message) => message.sequenceNumber.equals(later[0]));
    assert.deepEqual([waiting.body, waiting.state], ["late", "scheduled"]);
    await sender.cancelScheduledMessages(later);
    const due = await receiveExactly(receiver, 4, 30_000);
    assert.deepEqual(due.map((message) => message.body).sort(), ["0", "1", "2", "3"]);
    for (const message of due) {
      assert.ok(message.enqueuedTimeUtc >= message.scheduledEnqueueTimeUtc);
      await receiver.completeMessage(message);
    }
    assert.deepEqual(await client.createReceiver(queue).peekMessages(10), []);
    assert.equal((await rejection(sender.cancelScheduledMessages(later[0]))).code, "MessageNotFound");
  },
  "sessions": async (client, queue) => {
    const messages = ["a1", "b1", "a2", "a3"].map((body) => ({ body, sessionId: body[0] }));
    await send(client, queue, ...messages);
    const refused = await rejection(client.createSender(queue).sendMessages({ body: "none" }));
    assert.match(refused.message, /requires sessions/);
    const receiver = await client.acceptSession(queue, "a");
    assert.equal(receiver.sessionId, "a");
    assert.ok(receiver.sessionLockedUntilUtc > new Date());
    assert.equal((await rejection(client.acceptSession(queue, "a"))).code, "SessionCannotBeLocked");
    const found = await receiveExactly(receiver, 3);
    assert.deepEqual(found.map((message) => message.body), ["a1", "a2", "a3"]);
    await receiver.abandonMessage(found[0]);
    const [again] = await receiveExactly(receiver, 1);
    assert.deepEqual([again.body, again.deliveryCount], ["a1", 1]);
    await receiver.completeMessage(again);
    await receiver.deferMessage(found[1]);
    const [deferred] = await receiver.receiveDeferredMessages(found[1].sequenceNumber);
    assert.deepEqual([deferred.body, deferred.sessionId], ["a2", "a"]);
    await receiver.completeMessage(deferred);
    assert.deepEqual((await receiver.peekMessages(10)).map((message) => message.body), ["a3"]);
    assert.deepEqual(await receiver.receiveMessages(10, { maxWaitTimeInMs: 200 }), [], "after a drain");
    const before = receiver.sessionLockedUntilUtc;
    await sleep(100);
    assert.ok((await receiver.renewSessionLock()) > before);
    await receiver.setSessionState({ seen: 2 });
    assert.deepEqual(await receiver.getSessionState(), { seen: 2 });
    await receiver.close();
    const next = {};
    for (let round = 0; round < 2; round++) {
      const one = await client.acceptNextSession(queue);
      next[one.sessionId] = (await receiveExactly(one, 1))[0].body;
    }
    assert.deepEqual(next, { a: "a3", b: "b1" });
    const short = new ServiceBusClient(connectionString, { retryOptions: { maxRetries: 0, timeoutInMs: 2_000 } });
    assert.equal((await rejection(short.acceptNextSession(queue))).code, "ServiceTimeout");
    await short.close();
  },
  "dead-letter": async (client, queue) => {
    await send(client, queue, { body: "spoilt", messageId: "m" });
    const receiver = client.createReceiver(queue);
    const [message] = await receiveExactly(receiver, 1);
    await receiver.deadLetterMessage(message, { deadLetterReason: "no good", deadLetterErrorDescription: "it cannot be read" });
    await assertEmpty(receiver);
    const dead = deadLetters(client, queue);
    const [letter] = await receiveExactly(dead, 1);
    assert.deepEqual(
      [letter.body, letter.messageId, letter.deadLetterReason, letter.deadLetterErrorDescription],
      ["spoilt", "m", "no good", "it cannot be read"],
    );
    await dead.completeMessage(letter);
    await assertEmpty(dead);
  },
  "dead-letter-queue-leads-no-further": async (client, queue) => {
    await send(client, queue, { body: "spoilt" });
    const receiver = client.createReceiver(queue);
    const [message] = await receiveExactly(receiver, 1);
    await receiver.deadLetterMessage(message, { deadLetterReason: "no good", deadLetterErrorDescription: "it cannot be read" });
    const dead = deadLetters(client, queue);
    for (let round = 0; round < 3; round++) {
      const [letter] = await receiveExactly(dead, 1);
      assert.equal(letter.deliveryCount, 0);
      await dead.abandonMessage(letter);
    }
    const again = (message) => dead.deadLetterMessage(message, { deadLetterReason: "again" });
    const refusal = /InvalidOperation.*cannot be dead-lettered again/;
    const [letter] = await receiveExactly(dead, 1);
    await dead.deferMessage(letter);
    const [deferred] = await dead.receiveDeferredMessages(letter.sequenceNumber);
    assert.match((await rejection(again(deferred))).message, refusal); // on the management node
    assert.deepEqual([deferred.deliveryCount, deferred.deadLetterReason], [0, "no good"]);
    await dead.completeMessage(deferred); // the lock was kept
    await send(client, queue, { body: "spoilt too" });
    await receiver.deadLetterMessage((await receiveExactly(receiver, 1))[0], { deadLetterReason: "no better" });
    const [other] = await receiveExactly(dead, 1);
    assert.match((await rejection(again(other))).message, refusal); // on the link
    await assertEmpty(dead); // the lock was kept
    assert.deepEqual((await dead.peekMessages(2)).map((each) => [each.deliveryCount, each.deadLetterReason]), [[0, "no better"]]);
  },
  "delivery-annotations": async (client, queue) => {
    await send(client, queue, { bodyType: "data", body: Buffer.from("x"), deliveryAnnotations: { hop: "first" } }, { body: "y" });
    const receiver = client.createReceiver(queue);
    for (const message of await receiveExactly(receiver, 2)) {
      const { hop, ...others } = message._rawAmqpMessage.deliveryAnnotations;
      assert.equal(hop, message.body === "y" ? undefined : "first");
      assert.deepEqual(Object.keys(others), ["x-opt-lock-token"]);
      // The client copies the sixteen bytes into a plain object.
      assert.equal(Buffer.from(Object.values(others["x-opt-lock-token"])).toString("hex"), message.lockToken.replaceAll("-", ""));
      await receiver.abandonMessage(message);
    }
    await receiver.close();
    const destructive = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    for (const message of await receiveExactly(destructive, 2)) {
      assert.deepEqual({ ...message._rawAmqpMessage.deliveryAnnotations }, message.body === "y" ? {} : { hop: "first" });
    }
  },
  "peek-pages": async (client, queue) => {
    await send(client, queue, ...numbered(30));
    const receiver = client.createReceiver(queue);
    const seen = [];
    for (let page = await receiver.peekMessages(7); page.length > 0; page = await receiver.peekMessages(7)) {
      seen.push(...page);
      assert.ok(page.length <= 7 && seen.length <= 30, "paging shows a message twice");
    }
    assert.deepEqual(ids(seen), ids(numbered(30)));
    assert.deepEqual(ids(await receiveExactly(receiver, 30)), ids(numbered(30)));
  },
  "renew-lock": async (client, queue) => {
    await send(client, queue, { body: "slow work" });
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receiveExactly(receiver, 1);
    const first = message.lockedUntilUtc;
    await sleep(lockShortMs * 0.7);
    const renewed = await receiver.renewMessageLock(message);
    assert.ok(renewed - first >= lockShortMs * 0.6, `${first} was renewed to ${renewed}`);
    await sleep(lockShortMs * 0.5);
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },
  "max-delivery-count": async (client, queue) => {
    await send(client, queue, { body: "poison" });
    const receiver = client.createReceiver(queue);
    for (const attempt of [0, 1]) {
      const [message] = await receiveExactly(receiver, 1);
      assert.equal(message.deliveryCount, attempt);
      await receiver.abandonMessage(message);
    }
    await assertEmpty(receiver);
    const [dead] = await receiveExactly(deadLetters(client, queue), 1);
    assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
  },
  "time-to-live": async (client, queue) => {
    await send(client, queue, { body: "brief", timeToLive: 1000 });
    await sleep(1200);
    await assertEmpty(client.createReceiver(queue));
    const [dead] = await receiveExactly(deadLetters(client, queue), 1);
    assert.deepEqual([dead.body, dead.deadLetterReason], ["brief", "TTLExpiredException"]);
  },
  "large-message": async (client, queue) => {
    const sizes = [1, 65_535, 262_144, 900_000];
    await send(client, queue, ...sizes.map((size) => ({ body: Buffer.alloc(size, size % 251), messageId: String(size) })));
    const found = await receiveExactly(client.createReceiver(queue, { receiveMode: "receiveAndDelete" }), sizes.length);
    for (const { messageId, body } of found) assert.ok(body.equals(Buffer.alloc(Number(messageId), Number(messageId) % 251)), messageId);
  },
  "message-too-large": async (client, queue) => {
    const error = await rejection(client.createSender(queue).sendMessages({ body: Buffer.alloc(2_000_000) }));
    assert.equal(error.code, "MessageSizeExceeded", String(error));
    await send(client, queue, { body: "small" });
    await receiveExactly(client.createReceiver(queue), 1);
  },
  "unknown-queue": async (client, queue) => {
    const error = await rejection(client.createSender(queue).sendMessages({ body: "x" }));
    assert.equal(error.code, "MessagingEntityNotFound", String(error));
    const other = await rejection(client.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 1000 }));
    assert.equal(other.code, "MessagingEntityNotFound", String(other));
  },
  "wrong-key": withClient(
    async (client, queue) => {
      const error = await rejection(client.createSender(queue).sendMessages({ body: "x" }));
      assert.equal(error.code, "UnauthorizedAccess", String(error));
    },
    connectionStringWrongKey,
    { retryOptions: { maxRetries: 0 } },
  ),
};

for (const [name, scenario] of Object.entries(scenarios)) {
  if (name !== "wrong-key") scenarios[name] = withClient(scenario);
}
await run(scenarios);
