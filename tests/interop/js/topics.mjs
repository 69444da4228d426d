// Topics through @azure/service-bus, unchanged. topic_scenarios.py says which subscriptions the topic of each scenario has.
import assert from "node:assert/strict";
import { assertEmpty, ids, numbered, receiveExactly, send, withClient } from "./azure.mjs";
import { lockShortMs, rejection, run, sleep } from "./harness.mjs";

const taking = (client, topic, subscription, options = {}) =>
  client.createReceiver(topic, subscription, { receiveMode: "receiveAndDelete", ...options });
const deadLetters = (client, topic, subscription) => client.createReceiver(topic, subscription, { subQueueType: "deadLetter" });
const reasons = (messages) => messages.map((message) => [message.body, message.deadLetterReason]).sort();
const bodies = (messages) => messages.map((message) => message.body).sort();

// Take exactly these messages out of a subscription.
async function assertGets(client, topic, subscription, ...wanted) {
  const receiver = taking(client, topic, subscription);
  const found = await receiveExactly(receiver, wanted.length);
  assert.deepEqual(bodies(found), [...wanted].sort(), subscription);
  await assertEmpty(receiver);
  return found;
}

const scenarios = {
  "publish": async (client, topic) => {
    const sender = client.createSender(topic);
    const batch = await sender.createMessageBatch();
    for (const message of numbered(10)) assert.ok(batch.tryAddMessage(message));
    await sender.sendMessages(batch);
    await sender.sendMessages([{ body: "of a list" }, { body: "of the same list" }]);
    const alone = { body: { a: [1, null] }, subject: "s", applicationProperties: { whole: 7, yes: true }, messageId: "alone" };
    await sender.sendMessages(alone);
    for (const subscription of ["all", "other"]) {
      const receiver = taking(client, topic, subscription);
      const found = await receiveExactly(receiver, 13);
      const { body, subject, applicationProperties, deliveryCount } = found.find(({ messageId }) => messageId === "alone");
      assert.deepEqual({ body, subject, applicationProperties: { ...applicationProperties }, messageId: "alone" }, alone);
      assert.equal(deliveryCount, 0);
      await assertEmpty(receiver);
    }
    const refused = await rejection(client.createReceiver(topic).receiveMessages(1, { maxWaitTimeInMs: 1000 }));
    assert.match(refused.message, /subscriptions/);
    const missing = await rejection(client.createReceiver(topic, "missing").receiveMessages(1, { maxWaitTimeInMs: 1000 }));
    assert.equal(missing.code, "MessagingEntityNotFound", String(missing));
  },
  "filters": async (client, topic) => {
    const messages = ["red", "blue", "green"].flatMap((subject) =>
      [3, 7].map((size) => ({ body: `${subject} ${size}`, subject, applicationProperties: { size } })),
    );
    await client.createSender(topic).sendMessages(messages);
    await assertGets(client, topic, "true", ...messages.map(({ body }) => body));
    await assertEmpty(taking(client, topic, "false"));
    await assertGets(client, topic, "correlation", "red 7");
    await assertGets(client, topic, "sql", "red 7");
    const several = await assertGets(client, topic, "several", "red 3", "red 7", "blue 3", "green 3", "blue 3", "blue 7");
    const copies = several.filter(({ subject }) => subject === "changed");
    const changes = copies.map(({ applicationProperties }) => [applicationProperties.size, applicationProperties.RuleName]);
    assert.deepEqual(changes.sort(), [[14, "copied"], [6, "copied"]]);
    await assertEmpty(taking(client, topic, "failing"));
    const dead = await receiveExactly(deadLetters(client, topic, "failing"), 3);
    assert.deepEqual(bodies(dead), ["blue 7", "green 7", "red 7"]);
    assert.ok(dead.every(({ deadLetterReason }) => deadLetterReason === "FilterException"));
  },
  "typed-filters": async (client, topic) => {
    const applicationProperties = { whole: 7, fraction: 1.5, text: "a_b", yes: true, no: false, at: new Date("2020-07-01") };
    const system = { messageId: "typed", correlationId: "c", to: "t", replyTo: "r", contentType: "ct", subject: "l" };
    await send(client, topic, { body: "x", ...system, applicationProperties });
    for (const each of ["numbers", "texts", "booleans", "dates", "absent", "system", "correlation"]) await assertGets(client, topic, each, "x");
    for (const each of ["unknown", "other-value"]) await assertGets(client, topic, each);
  },
  "settle": async (client, topic) => {
    const names = ["complete", "abandon", "defer", "dead-letter", "defer, then dead-letter"];
    await client.createSender(topic).sendMessages(names.map((body) => ({ body })));
    const receiver = client.createReceiver(topic, "all");
    const found = await receiveExactly(receiver, names.length);
    const named = (name) => found.find(({ body }) => body === name);
    await receiver.completeMessage(named("complete"));
    await receiver.abandonMessage(named("abandon"), { tried: "once" });
    await receiver.deferMessage(named("defer"));
    await receiver.deferMessage(named("defer, then dead-letter"));
    await receiver.deadLetterMessage(named("dead-letter"), { deadLetterReason: "no good", deadLetterErrorDescription: "why" });
    const [again] = await receiveExactly(receiver, 1);
    assert.deepEqual([again.body, again.deliveryCount, again.applicationProperties.tried], ["abandon", 1, "once"]);
    await receiver.completeMessage(again);
    const numbers = ["defer", "defer, then dead-letter"].map((name) => named(name).sequenceNumber);
    const [one, other] = await receiver.receiveDeferredMessages(numbers);
    assert.deepEqual([one.body, one.state, other.body], ["defer", "deferred", "defer, then dead-letter"]);
    await receiver.completeMessage(one);
    await receiver.deadLetterMessage(other, { deadLetterReason: "later" });
    assert.deepEqual(await client.createReceiver(topic, "all").peekMessages(10), []);
    const letters = deadLetters(client, topic, "all");
    const dead = await receiveExactly(letters, 2);
    assert.deepEqual(reasons(dead), [["dead-letter", "no good"], ["defer, then dead-letter", "later"]]);
    for (const each of dead) await letters.completeMessage(each);
    await assertEmpty(letters);
    await assertGets(client, topic, "other", ...names); // what one subscription does with its messages is no matter of the others
  },
  "renew-lock": async (client, topic) => {
    await send(client, topic, { body: "slow work" });
    const receiver = client.createReceiver(topic, "all", { maxAutoLockRenewalDurationInMs: 0 });
    const [message] = await receiveExactly(receiver, 1);
    await sleep(lockShortMs * 0.7);
    await receiver.renewMessageLock(message);
    await sleep(lockShortMs * 0.5);
    await receiver.completeMessage(message);
    await assertEmpty(receiver);
  },
  "peek-pages": async (client, topic) => {
    await client.createSender(topic).sendMessages(numbered(30));
    await send(client, topic, { body: "apart", messageId: "apart" });
    const receiver = client.createReceiver(topic, "all");
    const seen = [];
    for (let page = await receiver.peekMessages(7); page.length > 0; page = await receiver.peekMessages(7)) {
      seen.push(...page);
      assert.ok(page.length <= 7 && seen.length <= 31, "paging shows a message twice");
    }
    assert.deepEqual(ids(seen), [...ids(numbered(30)), "apart"].sort());
    const [{ sequenceNumber, body }] = seen;
    assert.equal((await receiver.peekMessages(1, { fromSequenceNumber: sequenceNumber }))[0].body, body);
    assert.deepEqual(ids(await receiveExactly(receiver, 31)), ids(seen));
  },
  "schedule-and-cancel": async (client, topic) => {
    const sender = client.createSender(topic);
    const late = await sender.scheduleMessages([{ body: "late" }, { body: "later", partitionKey: "a" }], new Date(Date.now() + 3_600_000));
    const receiver = client.createReceiver(topic, "all");
    assert.deepEqual(await receiver.peekMessages(10), []); // until their time, they are the topic's
    await sender.cancelScheduledMessages(late);
    const soon = new Date(Date.now() + 1_000);
    await sender.scheduleMessages([{ body: "0" }, { body: "1", partitionKey: "a" }], soon);
    await sender.sendMessages({ body: "2", scheduledEnqueueTimeUtc: soon });
    const due = await receiveExactly(receiver, 3, 30_000);
    assert.deepEqual(bodies(due), ["0", "1", "2"]);
    for (const message of due) {
      assert.ok(message.enqueuedTimeUtc >= message.scheduledEnqueueTimeUtc);
      await receiver.completeMessage(message);
    }
    assert.equal((await rejection(sender.cancelScheduledMessages(late[0]))).code, "MessageNotFound");
  },
  "sessions": async (client, topic) => {
    await send(client, topic, ...["a1", "b1", "a2", "a3"].map((body) => ({ body, sessionId: body[0] })), { body: "none" });
    const one = await client.acceptSession(topic, "sessions", "a");
    const found = await receiveExactly(one, 3);
    assert.deepEqual(found.map(({ body }) => body), ["a1", "a2", "a3"]);
    await one.completeMessage(found[0]);
    await one.deferMessage(found[1]);
    const [deferred] = await one.receiveDeferredMessages([found[1].sequenceNumber]);
    await one.completeMessage(deferred);
    await one.setSessionState({ seen: 2 });
    assert.deepEqual(await one.getSessionState(), { seen: 2 });
    assert.ok((await one.renewSessionLock()) > new Date());
    const held = await rejection(client.acceptSession(topic, "sessions", "a"));
    assert.equal(held.code, "SessionCannotBeLocked", String(held));
    await one.abandonMessage(found[2]);
    await one.close();
    const next = {};
    for (let round = 0; round < 2; round++) {
      const session = await client.acceptNextSession(topic, "sessions");
      next[session.sessionId] = (await receiveExactly(session, 1))[0].body;
    }
    assert.deepEqual(next, { a: "a3", b: "b1" });
    const [dead] = await receiveExactly(deadLetters(client, topic, "sessions"), 1);
    assert.deepEqual([dead.body, dead.deadLetterReason], ["none", "Session id is null."]);
    await assertGets(client, topic, "plain", "a1", "b1", "a2", "a3", "none");
  },
  "dead-letters": async (client, topic) => {
    await send(client, topic, { body: "poison" });
    const receiver = client.createReceiver(topic, "all");
    for (const attempt of [0, 1]) {
      const [message] = await receiveExactly(receiver, 1);
      assert.equal(message.deliveryCount, attempt);
      await receiver.abandonMessage(message);
    }
    await receiver.close();
    await send(client, topic, { body: "brief", timeToLive: 500 });
    const letters = deadLetters(client, topic, "all");
    const dead = await receiveExactly(letters, 2);
    assert.deepEqual(reasons(dead), [["brief", "TTLExpiredException"], ["poison", "MaxDeliveryCountExceeded"]]);
    await assertEmpty(client.createReceiver(topic, "all"));
  },
  "forwarding": async (client, topic) => {
    await send(client, topic, { body: "red", subject: "red" }, { body: "blue", subject: "blue" });
    const queue = client.createReceiver(`${topic}.queue`, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receiveExactly(queue, 2)), ["blue", "red"]);
    const [copy] = await assertGets(client, `${topic}.topic`, "all", "red");
    assert.equal(copy.applicationProperties.way, "changed");
    const receiver = client.createReceiver(topic, "dead-letters-to-queue");
    for (const message of await receiveExactly(receiver, 2)) await receiver.deadLetterMessage(message, { deadLetterReason: "mine" });
    const dead = await receiveExactly(queue, 2);
    for (const each of dead) {
      assert.deepEqual([each.deadLetterReason, each.deadLetterSource], ["mine", `${topic}/Subscriptions/dead-letters-to-queue`]);
    }
    const refused = await rejection(client.createReceiver(topic, "to-queue").receiveMessages(1, { maxWaitTimeInMs: 5_000 }));
    assert.match(refused.message, /auto-forwarding enabled/);
  },
  "rule-manager": async (client, topic) => {
    const rules = client.createRuleManager(topic, "all");
    const listed = async () => {
      const names = [];
      for await (const { name } of rules.listRules()) names.push(name);
      return names.sort();
    };
    const messages = [{ body: "red", subject: "red" }, { body: "blue", subject: "blue", applicationProperties: { size: 7 } }];
    const publish = () => client.createSender(topic).sendMessages(messages);
    await publish();
    await rules.createRule("red", { subject: "red" });
    await rules.createRule("sized", { sqlExpression: "size = 7" }, { sqlExpression: "SET size = 8" });
    await rules.deleteRule("$Default");
    assert.deepEqual(await listed(), ["red", "sized"]);
    await assertGets(client, topic, "all", "blue", "red"); // published under the earlier rule
    await publish();
    const found = await assertGets(client, topic, "all", "blue", "red");
    assert.equal(found.find(({ body }) => body === "blue").applicationProperties.size, 8);
    await rules.deleteRule("sized");
    await publish();
    await assertGets(client, topic, "all", "red");
  },
};

for (const [name, scenario] of Object.entries(scenarios)) scenarios[name] = withClient(scenario, undefined, { retryOptions: { maxRetries: 0 } });
await run(scenarios);
