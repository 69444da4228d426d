// rhea, a plain AMQP 1.0 client that knows nothing of Service Bus, against the running broker.
import assert from "node:assert/strict";
import rhea from "rhea";
import { connect, decode, lockTokens, openReceiver, openSender, outcomes, request, sequenceNumbers } from "./amqp.mjs";
import { openCoordinator } from "./transactions.mjs";
import { lockShortMs, rejection, run, sleep } from "./harness.mjs";

const { types, message } = rhea;
const BATCH_FORMAT = 0x80013700;
const SETTLED = { snd_settle_mode: 1, rcv_settle_mode: 0 };

// A scenario with a connection of its own, closed afterwards.
const withConnection = (scenario) => async (queue) => {
  const connection = await connect();
  try {
    await scenario(connection, queue);
  } finally {
    connection.close();
  }
};

const numbered = (count) => Array.from({ length: count }, (_, number) => ({ message_id: `id-${number}`, body: `message ${number}` }));
const ids = (found) => found.map((each) => (each.message ?? each).message_id).sort();
const count = (found) => found.message.delivery_count ?? 0;

async function send(connection, queue, ...messages) {
  await (await openSender(connection, queue)).send(...messages);
}

// Send one message, settle its delivery with `outcome`, and give the receiver and the broker's own outcome.
async function settleOne(connection, queue, outcome) {
  await send(connection, queue, { message_id: "m", body: "x", application_properties: { kept: "yes", replaced: "old" } });
  const receiver = await openReceiver(connection, queue);
  const [found] = await receiver.receive(1);
  assert.equal(count(found), 0);
  const answer = await receiver.settle(found.delivery, outcome);
  return { receiver, answer, found };
}

async function assertEmpty(receiver) {
  assert.deepEqual(ids(await receiver.drain(10)), []);
}

const scenarios = {
  "send-one": async (connection, queue) => {
    await send(connection, queue, { message_id: "m", subject: "s", body: { a: 1 }, application_properties: { k: "v" }, message_annotations: { "x-mine": 1 } });
    const receiver = await openReceiver(connection, queue);
    const [{ message: found, delivery }] = await receiver.receive(1);
    assert.deepEqual([found.message_id, found.subject, found.body, found.application_properties], ["m", "s", { a: 1 }, { k: "v" }]);
    assert.equal(found.message_annotations["x-mine"], 1);
    assert.ok(found.message_annotations["x-opt-sequence-number"] !== undefined);
    assert.equal(delivery.tag.length, 16);
    await receiver.settle(delivery, outcomes.accepted());
    await assertEmpty(receiver);
  },
  "send-many": async (connection, queue) => {
    await send(connection, queue, ...numbered(500));
    const receiver = await openReceiver(connection, queue);
    const found = await receiver.receive(500);
    found.forEach(({ delivery }) => delivery.accept());
    assert.deepEqual(ids(found), ids(numbered(500)));
    await assertEmpty(receiver);
  },
  "send-batch": async (connection, queue) => {
    const sender = await openSender(connection, queue);
    const batch = message.encode({ body: message.data_sections(numbered(50).map((each) => message.encode(each))) });
    assert.equal((await sender.offer(batch, BATCH_FORMAT)).outcome, "accepted");
    const found = await (await openReceiver(connection, queue)).receive(50);
    assert.deepEqual(ids(found), ids(numbered(50)));
    assert.ok(found.every(({ message: { body } }) => body.startsWith("message ")));
  },
  "receive-settled": async (connection, queue) => {
    await send(connection, queue, ...numbered(10));
    const receiver = await openReceiver(connection, queue, SETTLED);
    const found = await receiver.receive(10);
    assert.ok(found.every(({ delivery }) => delivery.remote_settled));
    await receiver.close();
    await assertEmpty(await openReceiver(connection, queue));
  },
  "accepted": async (connection, queue) => {
    const { receiver, answer } = await settleOne(connection, queue, outcomes.accepted());
    assert.equal(answer.outcome, "accepted");
    await assertEmpty(receiver);
  },
  "released": async (connection, queue) => {
    const { receiver, answer } = await settleOne(connection, queue, outcomes.released());
    assert.equal(answer.outcome, "released");
    const [again] = await receiver.receive(1);
    assert.equal(count(again), 0, "a released message counts no delivery");
    again.delivery.accept();
  },
  "rejected": async (connection, queue) => {
    const { receiver, answer } = await settleOne(connection, queue, outcomes.rejected({ condition: "app:bad", description: "it is bad" }));
    assert.equal(answer.outcome, "rejected");
    assert.ok(!answer.error, "a refusal is what an error would mean");
    await assertEmpty(receiver);
    const [dead] = await (await openReceiver(connection, `${queue}/$DeadLetterQueue`)).receive(1);
    assert.equal(dead.message.message_id, "m");
  },
  "modified-failed": async (connection, queue) => {
    const { receiver, answer } = await settleOne(connection, queue, outcomes.modified({ delivery_failed: true }));
    assert.equal(answer.outcome, "modified");
    const [again] = await receiver.receive(1);
    assert.equal(count(again), 1);
    again.delivery.accept();
  },
  // Given back, and the clients that leave delivery-failed out mean a failed delivery (AMQP contract 6.1).
  "modified-plain": async (connection, queue) => {
    const { receiver, answer } = await settleOne(connection, queue, outcomes.modified({ undeliverable_here: false }));
    assert.equal(answer.outcome, "modified");
    const [again] = await receiver.receive(1);
    assert.equal(count(again), 1);
    again.delivery.accept();
  },
  "modified-not-failed": async (connection, queue) => {
    const { receiver, answer } = await settleOne(connection, queue, outcomes.modified({ delivery_failed: false }));
    assert.equal(answer.outcome, "modified");
    const [again] = await receiver.receive(1);
    assert.equal(again.message.message_id, "m");
    again.delivery.accept();
  },
  "modified-undeliverable-here": async (connection, queue) => {
    const { receiver, answer, found } = await settleOne(connection, queue, outcomes.modified({ undeliverable_here: true }));
    assert.equal(answer.outcome, "modified");
    await assertEmpty(receiver);
    const number = found.message.message_annotations["x-opt-sequence-number"];
    const { statusCode } = await request(connection, queue, "com.microsoft:receive-by-sequence-number", {
      "sequence-numbers": sequenceNumbers(number),
      "receiver-settle-mode": types.wrap_uint(0),
    });
    assert.equal(statusCode, 200, "it was deferred");
  },
  "modified-annotations": async (connection, queue) => {
    const changes = { replaced: "new", added: "too" };
    const { receiver } = await settleOne(connection, queue, outcomes.modified({ delivery_failed: true, message_annotations: changes }));
    const [again] = await receiver.receive(1);
    assert.deepEqual({ ...again.message.application_properties }, { kept: "yes", replaced: "new", added: "too" });
  },
  "dead-letter-queue": async (connection, queue) => {
    const { receiver } = await settleOne(connection, queue, outcomes.rejected());
    const dead = await openReceiver(connection, `${queue}/$deadletterqueue`);
    const [first] = await dead.receive(1);
    await dead.settle(first.delivery, outcomes.released());
    const [second] = await dead.receive(1);
    await dead.settle(second.delivery, outcomes.accepted());
    await assertEmpty(dead);
    await assertEmpty(receiver);
  },
  "drain": async (connection, queue) => {
    const receiver = await openReceiver(connection, queue);
    assert.equal((await receiver.drain(10)).length, 0);
    await send(connection, queue, ...numbered(3));
    const found = await receiver.drain(10);
    assert.deepEqual(ids(found), ids(numbered(3)));
    found.forEach(({ delivery }) => delivery.accept());
    assert.equal((await receiver.drain(5)).length, 0);
    await send(connection, queue, ...numbered(2));
    assert.equal((await receiver.receive(2)).length, 2, "credit counts from where the drain left it");
  },
  "credit-one-by-one": async (connection, queue) => {
    await send(connection, queue, ...numbered(20));
    const receiver = await openReceiver(connection, queue);
    const seen = [];
    for (let number = 0; number < 20; number++) {
      const [found] = await receiver.receive(1);
      assert.equal(receiver.found.length, 0, "no more than the credit");
      seen.push(found);
      found.delivery.accept();
    }
    assert.deepEqual(ids(seen), ids(numbered(20)));
  },
  "detach-and-attach-again": async (connection, queue) => {
    await send(connection, queue, ...numbered(5));
    for (let round = 0; round < 5; round++) {
      const receiver = await openReceiver(connection, queue, { name: "the same name" });
      const [found] = await receiver.receive(1);
      await receiver.settle(found.delivery, outcomes.accepted());
      await receiver.close();
    }
    await assertEmpty(await openReceiver(connection, queue));
  },
  "multi-frame-messages": async (_, queue) => {
    const small = await connect({ max_frame_size: 4096 });
    try {
      for (const size of [4_000, 100_000, 1_000_000]) {
        await send(small, queue, { message_id: String(size), body: message.data_section(Buffer.alloc(size, 7)) });
        const receiver = await openReceiver(small, queue);
        const [{ message: found, delivery }] = await receiver.receive(1);
        assert.ok(found.body.content.equals(Buffer.alloc(size, 7)), String(size));
        await receiver.settle(delivery, outcomes.accepted());
      }
    } finally {
      small.close();
    }
  },
  "message-too-large": async (connection, queue) => {
    const sender = await openSender(connection, queue);
    assert.ok(sender.link.remote.attach.max_message_size > 0, "the limit is told");
    const { outcome, error } = await sender.offer({ body: message.data_section(Buffer.alloc(2_000_000)) });
    assert.equal(outcome, "rejected");
    assert.equal(error?.condition, "amqp:link:message-size-exceeded", outcome);
    await send(connection, queue, { body: "small" });
    await (await openReceiver(connection, queue)).receive(1);
  },
  "unknown-queue": async (connection, queue) => {
    assert.equal((await rejection(openSender(connection, queue))).condition, "amqp:not-found");
    assert.equal((await rejection(openReceiver(connection, queue))).condition, "amqp:not-found");
  },
  "wrong-key": async () => {
    const error = await rejection(connect({ password: "not the key" }));
    assert.match(String(error), /auth|sasl|denied|Failed/i);
  },
  "peek-pages": async (connection, queue) => {
    await send(connection, queue, ...numbered(20));
    const seen = [];
    for (let from = 1; ; ) {
      const page = await request(connection, queue, "com.microsoft:peek-message", {
        "from-sequence-number": types.wrap_long(from),
        "message-count": types.wrap_int(6),
      });
      if (page.statusCode === 204) break;
      assert.equal(page.statusCode, 200);
      seen.push(...page.body.messages.map((each) => decode(each.message)));
      assert.ok(seen.length <= 20, "paging shows a message twice");
      from = Number(seen.at(-1).message_annotations["x-opt-sequence-number"]) + 1;
    }
    assert.deepEqual(ids(seen), ids(numbered(20)));
  },
  "renew-lock": async (connection, queue) => {
    await send(connection, queue, { message_id: "m", body: "slow work" });
    const receiver = await openReceiver(connection, queue);
    const [{ message: found, delivery }] = await receiver.receive(1);
    const first = Number(found.message_annotations["x-opt-locked-until"]);
    await sleep(lockShortMs * 0.7);
    const { statusCode, body } = await request(connection, queue, "com.microsoft:renew-lock", { "lock-tokens": lockTokens(delivery.tag) });
    assert.equal(statusCode, 200);
    assert.ok(Number(body.expirations[0]) >= first + lockShortMs * 0.6, `${first} renewed to ${body.expirations[0]}`);
    await sleep(lockShortMs * 0.5);
    assert.equal((await receiver.settle(delivery, outcomes.accepted())).outcome, "accepted");
    const lost = await request(connection, queue, "com.microsoft:renew-lock", { "lock-tokens": lockTokens(delivery.tag) });
    assert.deepEqual([lost.statusCode, String(lost.errorCondition)], [410, "com.microsoft:message-lock-lost"]);
  },
  "defer-and-fetch": async (connection, queue) => {
    const { found } = await settleOne(connection, queue, outcomes.modified({ undeliverable_here: true, delivery_failed: true }));
    const number = found.message.message_annotations["x-opt-sequence-number"];
    const fetch = () =>
      request(connection, queue, "com.microsoft:receive-by-sequence-number", {
        "sequence-numbers": sequenceNumbers(number),
        "receiver-settle-mode": types.wrap_uint(1),
      });
    const { statusCode, body } = await fetch();
    assert.equal(statusCode, 200);
    assert.equal(decode(body.messages[0].message).message_id, "m");
    const settled = await request(connection, queue, "com.microsoft:update-disposition", {
      "disposition-status": "completed",
      "lock-tokens": types.wrap_array([body.messages[0]["lock-token"]], 0x98),
    });
    assert.equal(settled.statusCode, 200);
    const gone = await fetch();
    assert.deepEqual([gone.statusCode, String(gone.errorCondition)], [404, "com.microsoft:message-not-found"]);
  },
  "update-disposition": async (connection, queue) => {
    await send(connection, queue, ...numbered(3));
    const receiver = await openReceiver(connection, queue);
    const [completed, abandoned, dead] = await receiver.receive(3);
    for (const [found, status] of [[completed, "completed"], [abandoned, "abandoned"], [dead, "suspended"]]) {
      const { statusCode } = await request(connection, queue, "com.microsoft:update-disposition", {
        "disposition-status": status,
        "lock-tokens": lockTokens(found.delivery.tag),
      });
      assert.equal(statusCode, 200, status);
    }
    const again = await receiver.drain(10);
    assert.deepEqual([ids(again), count(again[0])], [[abandoned.message.message_id], 1]);
    const [letter] = await (await openReceiver(connection, `${queue}/$DeadLetterQueue`)).receive(1);
    assert.equal(letter.message.message_id, dead.message.message_id);
  },
};

const COPY = "copy";
const browse = (connection, address, options = {}) =>
  openReceiver(connection, address, { source: { address, distribution_mode: COPY }, ...options });

// What a consumer finds after a browse: all of it, with no delivery counted.
async function left(connection, address) {
  const found = await (await openReceiver(connection, address)).drain(1_000);
  assert.ok(found.every((each) => count(each) === 0), "browsing counts as no delivery");
  return ids(found);
}

Object.assign(scenarios, {
  "browse": async (connection, queue) => {
    await send(connection, queue, ...numbered(4));
    const browser = await browse(connection, queue);
    assert.equal(browser.link.remote.attach.source.distribution_mode, COPY);
    const found = await browser.receive(4);
    assert.deepEqual(ids(found), ids(numbered(4)));
    const given = (name) => outcomes[name](name === "modified" ? { delivery_failed: true } : undefined);
    for (const [index, name] of ["accepted", "rejected", "released", "modified"].entries()) {
      assert.equal((await browser.settle(found[index].delivery, given(name))).outcome, name);
    }
    assert.deepEqual(await browser.drain(10), [], "each message once");
    assert.deepEqual(await left(connection, queue), ids(numbered(4)));
    assert.deepEqual(ids(await (await browse(connection, queue)).drain(10)), ids(numbered(4)), "what is locked is shown, too");
  },
  "browse-settled": async (connection, queue) => {
    await send(connection, queue, ...numbered(4));
    const found = await (await browse(connection, queue, SETTLED)).drain(10);
    assert.ok(found.every(({ delivery }) => delivery.remote_settled));
    assert.deepEqual([ids(found), await left(connection, queue)], [ids(numbered(4)), ids(numbered(4))]);
  },
  "browse-pages": async (connection, queue) => {
    await send(connection, queue, ...numbered(600).map((each) => ({ ...each, body: "x".repeat(2_000) })));
    const browser = await browse(connection, queue);
    const found = [];
    for (const credit of [1, 7, 292]) found.push(...(await browser.receive(credit)));
    found.push(...(await browser.drain(1_000)));
    assert.deepEqual(ids(found), ids(numbered(600)));
    assert.equal((await left(connection, queue)).length, 600);
  },
  "browse-dead-letters": async (connection, queue) => {
    await send(connection, queue, ...numbered(4));
    const receiver = await openReceiver(connection, queue);
    for (const { delivery } of await receiver.receive(3)) await receiver.settle(delivery, outcomes.rejected());
    const letters = `${queue}/$DeadLetterQueue`;
    const found = await (await browse(connection, letters)).drain(10);
    assert.deepEqual([found.length, await left(connection, letters)], [3, ids(found)]);
  },
  "browse-follows": async (connection, queue) => {
    await send(connection, queue, ...numbered(2));
    const browser = await browse(connection, queue);
    assert.deepEqual(ids(await browser.receive(2)), ids(numbered(2)));
    browser.link.add_credit(1);
    await send(connection, queue, { message_id: "late", body: "x" });
    assert.deepEqual(ids(await browser.take(1)), ["late"]);
    assert.equal((await left(connection, queue)).length, 3);
  },
  "selector": async (connection, queue) => {
    const colours = ["red", "blue"];
    const coloured = numbered(8).map((each, n) => ({ ...each, application_properties: { colour: colours[n % 2], n } }));
    await send(connection, queue, ...coloured);
    const filter = rhea.filter.selector("colour = 'red' AND n BETWEEN 2 AND 100");
    const wanted = ["id-2", "id-4", "id-6"];
    const browser = await browse(connection, queue, { source: { address: queue, distribution_mode: COPY, filter } });
    assert.deepEqual(ids(await browser.drain(10)), wanted);
    const receiver = await openReceiver(connection, queue, { source: { address: queue, filter } });
    assert.deepEqual(Object.keys(receiver.link.remote.attach.source.filter), ["jms-selector"], "the filter is echoed");
    const found = await receiver.receive(3);
    assert.deepEqual(ids(found), wanted);
    assert.deepEqual(await receiver.drain(10), []);
    await receiver.settle(found[0].delivery, outcomes.accepted());
    await receiver.settle(found[1].delivery, outcomes.released());
    const [again] = await receiver.receive(1);
    assert.equal(again.message.message_id, found[1].message.message_id);
    await send(connection, queue, { message_id: "late", body: "x", application_properties: { colour: "red", n: 50 } });
    const [late] = await receiver.receive(1);
    assert.equal(late.message.message_id, "late");
    for (const { delivery } of [found[2], again, late]) await receiver.settle(delivery, outcomes.accepted());
    assert.deepEqual(await left(connection, queue), ["id-0", "id-1", "id-3", "id-5", "id-7"]);
  },
  "selector-settled": async (connection, queue) => {
    await send(connection, queue, ...numbered(6).map((each, n) => ({ ...each, subject: `s${n % 2}` })));
    const source = { address: queue, filter: rhea.filter.selector("JMSType = 's1'") };
    const receiver = await openReceiver(connection, queue, { source, ...SETTLED });
    assert.deepEqual(ids(await receiver.receive(3)), ["id-1", "id-3", "id-5"]);
    assert.deepEqual(await receiver.drain(10), []);
    assert.deepEqual(await left(connection, queue), ["id-0", "id-2", "id-4"]);
  },
  "selector-refused": async (connection, queue) => {
    await send(connection, queue, ...numbered(2));
    const source = { address: queue, filter: rhea.filter.selector("colour = ") };
    for (const distribution_mode of [undefined, COPY]) {
      const error = await rejection(openReceiver(connection, queue, { source: { ...source, distribution_mode } }));
      assert.equal(error.condition, "com.microsoft:argument-error");
      assert.match(String(error), /not valid at position 10/);
    }
    assert.deepEqual(await left(connection, queue), ids(numbered(2)));
  },
});

const seen = async (connection, address) => ids(await (await browse(connection, address)).drain(100));

scenarios["transaction"] = async (connection, queue) => {
  const keyed = (id, key = "k") => ({ message_id: id, body: id, message_annotations: { "x-opt-partition-key": key } });
  await send(connection, queue, keyed("old-0"), keyed("old-1"));
  const receiver = await openReceiver(connection, queue);
  const [first, second] = await receiver.receive(2);
  const sender = await openSender(connection, queue);
  const coordinator = await openCoordinator(connection);

  const rolledBack = await coordinator.declare();
  assert.equal((await rolledBack.send(sender, keyed("never"))).outcome, "accepted");
  await rolledBack.settle(receiver, first.delivery, outcomes.accepted());
  await rolledBack.discharge(true);
  assert.deepEqual(await seen(connection, queue), ["old-0", "old-1"]);

  const committed = await coordinator.declare();
  assert.equal((await committed.send(sender, keyed("new-0"))).outcome, "accepted");
  assert.equal((await committed.send(sender, keyed("new-1"))).outcome, "accepted");
  await committed.settle(receiver, second.delivery, outcomes.accepted());
  assert.deepEqual(await seen(connection, queue), ["old-0", "old-1"]);
  await committed.discharge(false);
  assert.deepEqual(await seen(connection, queue), ["new-0", "new-1", "old-0"]);

  const refused = await coordinator.declare();
  await refused.send(sender, keyed("kept back"));
  const { outcome, error } = await refused.send(sender, keyed("x", "other"));
  assert.deepEqual([outcome, error.condition], ["rejected", "amqp:not-allowed"]);
  const failure = await rejection(refused.discharge(false));
  assert.equal(failure.condition, "amqp:transaction:rollback");
  assert.deepEqual(await seen(connection, queue), ["new-0", "new-1", "old-0"]);
};

for (const [name, scenario] of Object.entries(scenarios)) scenarios[name] = withConnection(scenario);
await run(scenarios);
