// The JavaScript administration client, unchanged, over TLS. NODE_EXTRA_CA_CERTS names the broker's authority.
import assert from "node:assert/strict";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import { connectionString, rejection, run } from "./harness.mjs";

const adminConnectionString = process.env.PARTIBUS_ADMIN_CONNECTION_STRING;
const noRetries = { retryOptions: { maxRetries: 0 } };
const client = new ServiceBusAdministrationClient(adminConnectionString, noRetries);

const codeOf = async (promise) => (await rejection(promise)).code;

const scenarios = {
  // How available PARTIBUS_QUEUE is, by itself and in the list.
  availability: async () => {
    const name = process.env.PARTIBUS_QUEUE;
    const found = [(await client.getQueue(name)).availabilityStatus];
    for await (const queue of client.listQueues()) if (queue.name === name) found.push(queue.availabilityStatus);
    return found.join();
  },
  "create-and-get": async (queue) => {
    const created = await client.createQueue(queue);
    assert.equal(created.name, queue);
    assert.equal(created.maxDeliveryCount, 10);
    assert.equal(created.lockDuration, "PT1M");
    assert.equal(created.enablePartitioning, true);
    assert.equal(created.availabilityStatus, "Available");
    const { _response: one, ...found } = await client.getQueue(queue);
    const { _response: other, ...expected } = created;
    assert.deepEqual(found, expected);
  },
  "every-property": async (queue) => {
    const options = {
      lockDuration: "PT13S",
      maxSizeInMegabytes: 3072,
      duplicateDetectionHistoryTimeWindow: "PT12M",
      defaultMessageTimeToLive: "PT11H",
      deadLetteringOnMessageExpiration: true,
      maxDeliveryCount: 14,
      enableBatchedOperations: false,
      enablePartitioning: false,
      userMetadata: "<kept> & shown",
      status: "SendDisabled",
      maxMessageSizeInKilobytes: 2048,
      authorizationRules: [
        { claimType: "SharedAccessKey", accessRights: ["Send", "Listen"], keyName: "app", primaryKey: "first", secondaryKey: "second" },
      ],
    };
    const created = await client.createQueue(queue, options);
    for (const [name, value] of Object.entries(options).filter(([name]) => name !== "authorizationRules")) {
      assert.deepEqual(created[name], value, name);
    }
    for (const option of ["forwardTo", "forwardDeadLetteredMessagesTo"]) {
      const source = `${queue}.${option}`;
      const { [option]: target } = await client.createQueue(source, { [option]: queue });
      assert.ok(target.endsWith(`/${queue}`), `${option}: ${target}`);
      await assert.rejects(client.createQueue(`${source}.more`, { [option]: "no-such-queue" }), /destination entity does not exist/);
    }
    const [rule] = created.authorizationRules;
    assert.deepEqual([rule.keyName, rule.primaryKey, rule.secondaryKey], ["app", "first", "second"]);
    assert.deepEqual([...rule.accessRights].sort(), ["Listen", "Send"]);
  },
  update: async (queue) => {
    const created = await client.createQueue(queue, { userMetadata: "before" });
    const updated = await client.updateQueue({ ...created, maxDeliveryCount: 5 });
    assert.deepEqual([updated.maxDeliveryCount, updated.userMetadata], [5, "before"]);
    assert.equal((await client.getQueue(queue)).maxDeliveryCount, 5);
  },
  "fixed-properties": async (queue) => {
    const created = await client.createQueue(queue);
    await assert.rejects(client.updateQueue({ ...created, enablePartitioning: false }), /Partitioning cannot be changed/);
  },
  errors: async (queue) => {
    assert.equal(await codeOf(client.getQueue(queue)), "MessageEntityNotFoundError");
    assert.equal(await codeOf(client.deleteQueue(queue)), "MessageEntityNotFoundError");
    await client.createQueue(queue);
    assert.equal(await codeOf(client.createQueue(queue)), "MessageEntityAlreadyExistsError");
    assert.equal(await codeOf(client.createQueue(`${queue}-x`, { lockDuration: "PT6M" })), "ServiceError");
    const stranger = new ServiceBusAdministrationClient(adminConnectionString.replace(/SharedAccessKey=[^;]*/, "SharedAccessKey=wrong"), noRetries);
    assert.equal(await codeOf(stranger.getQueue(queue)), "UnauthorizedRequestError");
  },
  "exists-and-delete": async (queue) => {
    assert.equal(await client.queueExists(queue), false);
    await client.createQueue(queue);
    assert.equal(await client.queueExists(queue), true);
    await client.deleteQueue(queue);
    assert.equal(await client.queueExists(queue), false);
  },
  lists: async (queue) => {
    const wanted = Array.from({ length: 103 }, (_, number) => `${queue}-${String(number).padStart(3, "0")}`);
    for (const name of wanted) await client.createQueue(name, { enablePartitioning: false });
    const listed = [];
    for await (const each of client.listQueues()) listed.push(each.name);
    assert.deepEqual(wanted.filter((name) => !listed.includes(name)), []);
    const pages = [];
    for await (const page of client.listQueuesRuntimeProperties().byPage({ maxPageSize: 50 })) pages.push(page.length);
    assert.ok(pages.length >= 3 && pages[0] === 50, `pages of ${pages}`);
    for (const name of wanted) await client.deleteQueue(name);
  },
  "runtime-properties": async (queue) => {
    await client.createQueue(queue);
    const messaging = new ServiceBusClient(connectionString);
    try {
      await messaging.createSender(queue).sendMessages(Array.from({ length: 7 }, (_, number) => ({ body: `m${number}` })));
    } finally {
      await messaging.close();
    }
    const runtime = await client.getQueueRuntimeProperties(queue);
    assert.deepEqual([runtime.activeMessageCount, runtime.totalMessageCount, runtime.deadLetterMessageCount], [7, 7, 0]);
    assert.ok(runtime.sizeInBytes > 0);
    assert.ok(runtime.createdAt instanceof Date && runtime.modifiedAt instanceof Date && runtime.accessedAt instanceof Date);
  },
  namespace: async () => {
    const properties = await client.getNamespaceProperties();
    assert.deepEqual([properties.name, properties.messagingSku], ["sbemulatorns", "Premium"]);
  },
  topics: async (topic) => {
    const options = {
      maxSizeInMegabytes: 2048,
      defaultMessageTimeToLive: "PT11H",
      requiresDuplicateDetection: true,
      duplicateDetectionHistoryTimeWindow: "PT12M",
      enableBatchedOperations: false,
      enablePartitioning: false,
      userMetadata: "<kept>",
      status: "SendDisabled",
    };
    const created = await client.createTopic(topic, options);
    for (const [name, value] of Object.entries(options)) assert.deepEqual(created[name], value, name);
    const { _response: one, ...found } = await client.getTopic(topic);
    const { _response: other, ...expected } = created;
    assert.deepEqual(found, expected);
    assert.equal((await client.updateTopic({ ...created, userMetadata: "changed" })).userMetadata, "changed");
    assert.equal(await codeOf(client.createTopic(topic)), "MessageEntityAlreadyExistsError");
    const listed = [];
    for await (const each of client.listTopics()) listed.push(each.name);
    assert.ok(listed.includes(topic));
    const runtime = await client.getTopicRuntimeProperties(topic);
    assert.deepEqual([runtime.subscriptionCount, runtime.scheduledMessageCount, runtime.sizeInBytes], [0, 0, 0]);
    await client.deleteTopic(topic);
    assert.equal(await client.topicExists(topic), false);
    assert.equal(await codeOf(client.getTopic(topic)), "MessageEntityNotFoundError");
  },
  subscriptions: async (topic) => {
    await client.createTopic(topic);
    await client.createQueue(`${topic}-target`);
    const options = {
      lockDuration: "PT13S",
      defaultMessageTimeToLive: "PT11H",
      deadLetteringOnMessageExpiration: true,
      deadLetteringOnFilterEvaluationExceptions: false,
      maxDeliveryCount: 4,
      userMetadata: "<kept>",
      status: "ReceiveDisabled",
    };
    const created = await client.createSubscription(topic, "One", { ...options, forwardTo: `${topic}-target` });
    for (const [name, value] of Object.entries(options)) assert.deepEqual(created[name], value, name);
    assert.deepEqual([created.topicName, created.subscriptionName], [topic, "One"]);
    assert.ok(created.forwardTo.endsWith(`/${topic}-target`), created.forwardTo);
    const { _response: one, ...found } = await client.getSubscription(topic, "one");
    const { _response: other, ...expected } = created;
    assert.deepEqual(found, expected);
    assert.equal((await client.updateSubscription({ ...created, maxDeliveryCount: 5 })).maxDeliveryCount, 5);
    assert.equal(await codeOf(client.createSubscription(topic, "ONE")), "MessageEntityAlreadyExistsError");
    assert.equal(await codeOf(client.createSubscription(`${topic}-none`, "One")), "MessageEntityNotFoundError");
    for (const name of ["a", "b"]) await client.createSubscription(topic, name);
    const pages = [];
    for await (const page of client.listSubscriptions(topic).byPage({ maxPageSize: 2 })) pages.push(page.map((each) => each.subscriptionName));
    assert.deepEqual(pages, [["a", "b"], ["One"]]);
    const runtime = await client.getSubscriptionRuntimeProperties(topic, "a");
    assert.deepEqual([runtime.activeMessageCount, runtime.totalMessageCount, runtime.deadLetterMessageCount], [0, 0, 0]);
    assert.equal((await client.getTopicRuntimeProperties(topic)).subscriptionCount, 3);
    await client.deleteSubscription(topic, "a");
    assert.equal(await client.subscriptionExists(topic, "a"), false);
    assert.equal(await codeOf(client.deleteSubscription(topic, "a")), "MessageEntityNotFoundError");
  },
  rules: async (topic) => {
    await client.createTopic(topic);
    await client.createSubscription(topic, "one", {
      defaultRuleOptions: { name: "first", filter: { sqlExpression: "color = 'red'" } },
    });
    assert.equal((await client.getRule(topic, "one", "first")).filter.sqlExpression, "color = 'red'");
    const sqlParameters = { "@text": "red", "@number": 2.5, "@flag": true };
    const made = {
      sql: { filter: { sqlExpression: "color = @text", sqlParameters }, action: { sqlExpression: "SET size = @number", sqlParameters } },
      correlation: {
        filter: { correlationId: "a", subject: "b", applicationProperties: { text: "red", number: 7, flag: false, when: new Date(1767607200000) } },
      },
    };
    for (const [name, { filter, action }] of Object.entries(made)) {
      const created = await client.createRule(topic, "one", name, filter, action);
      const found = await client.getRule(topic, "one", name);
      for (const rule of [created, found]) {
        assert.equal(rule.name, name);
        for (const [field, value] of Object.entries(filter)) assert.deepEqual(rule.filter[field], value, field);
        assert.equal(rule.action?.sqlExpression, action?.sqlExpression);
      }
    }
    const listed = [];
    for await (const rule of client.listRules(topic, "one")) listed.push(rule.name);
    assert.deepEqual(listed, ["first", "sql", "correlation"]);
    const rule = await client.getRule(topic, "one", "correlation");
    const updated = await client.updateRule(topic, "one", { ...rule, filter: { subject: "c" } });
    assert.equal(updated.filter.subject, "c");
    assert.equal(await codeOf(client.createRule(topic, "one", "SQL")), "MessageEntityAlreadyExistsError");
    await assert.rejects(client.createRule(topic, "one", "wrong", { sqlExpression: "color = " }), /position/);
    await client.deleteRule(topic, "one", "first");
    assert.equal(await codeOf(client.getRule(topic, "one", "first")), "MessageEntityNotFoundError");
  },
  "rule-manager": async (topic) => {
    await client.createTopic(topic);
    await client.createSubscription(topic, "one");
    const messaging = new ServiceBusClient(connectionString, noRetries);
    try {
      const rules = messaging.createRuleManager(topic, "one");
      const sender = messaging.createSender(topic);
      const receiver = messaging.createReceiver(topic, "one", { receiveMode: "receiveAndDelete" });
      const listed = async () => {
        const names = [];
        for await (const rule of rules.listRules()) names.push(rule.name);
        return names;
      };
      assert.deepEqual(await listed(), ["$Default"]);
      await rules.deleteRule("$Default");
      await rules.createRule("label", { subject: "red", applicationProperties: { size: 7 } });
      await rules.createRule("color", { sqlExpression: "color = 'red'" }, { sqlExpression: "SET color = 'blue'" });
      for await (const rule of rules.listRules()) {
        if (rule.name === "label") assert.deepEqual([rule.filter.subject, rule.filter.applicationProperties], ["red", { size: 7 }]);
        else assert.deepEqual([rule.filter.sqlExpression, rule.action.sqlExpression], ["color = 'red'", "SET color = 'blue'"]);
      }
      for (const [message, bodies] of [
        [{ body: "a", subject: "red", applicationProperties: { size: 7 } }, ["a"]],
        [{ body: "b", subject: "red", applicationProperties: { size: 8 } }, []],
        [{ body: "c", applicationProperties: { color: "red" } }, ["c"]],
      ]) {
        await sender.sendMessages([message, { body: "end", subject: "red", applicationProperties: { size: 7 } }].map((each) => ({ ...each, partitionKey: "p" })));
        const wanted = [...bodies, "end"];
        const found = [];
        while (found.length < wanted.length) found.push(...(await receiver.receiveMessages(wanted.length - found.length, { maxWaitTimeInMs: 10000 })));
        found.sort((one, other) => one.body.localeCompare(other.body));
        assert.deepEqual(found.map((each) => each.body), wanted);
        if (message.body === "c") assert.equal(found[0].applicationProperties.color, "blue");
      }
      await assert.rejects(rules.createRule("LABEL", { subject: "x" }), /already exists/);
      await assert.rejects(rules.createRule("wrong", { sqlExpression: "color = " }), /position/);
      await assert.rejects(rules.deleteRule("none"), /could not be found/);
      const applicationProperties = { small: 1, negative: -1, large: 2 ** 40, half: 0.5 }; // uint, int, ulong, double
      await rules.createRule("numbers", { applicationProperties });
      assert.deepEqual((await client.getRule(topic, "one", "numbers")).filter.applicationProperties, applicationProperties);
      for (let number = 0; number < 101; number++) await rules.createRule(`r${number}`, { subject: `${number}` });
      assert.equal((await listed()).length, 104);
      await client.deleteSubscription(topic, "one");
      await assert.rejects(rules.createRule("late", { subject: "x" }), { code: "MessagingEntityNotFound" });
    } finally {
      await messaging.close();
    }
  },
};

await run(scenarios);
