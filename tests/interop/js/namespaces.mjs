// @azure/service-bus, unchanged, with two namespaces of one broker that have a queue of the same name.
import assert from "node:assert/strict";
import dns from "node:dns";
import { ServiceBusClient } from "@azure/service-bus";
import { connectionString, rejection, run } from "./harness.mjs";

// Every name below `localhost` leads to this machine, as with many resolvers.
const { lookup } = dns;
dns.lookup = (host, ...rest) => lookup(host.endsWith(".localhost") ? "127.0.0.1" : host, ...rest);

const options = { retryOptions: { maxRetries: 0 } };

async function bodies(client, count) {
  const receiver = client.createReceiver("js", { receiveMode: "receiveAndDelete" });
  const found = await receiver.receiveMessages(count, { maxWaitTimeInMs: 20_000 });
  assert.deepEqual(await receiver.peekMessages(1), []);
  return found.map((message) => message.body);
}

const scenarios = {
  "own-entities": async () => {
    const first = new ServiceBusClient(connectionString, options);
    const second = new ServiceBusClient(process.env.PARTIBUS_OTHER_CONNECTION_STRING, options);
    try {
      await first.createSender("js").sendMessages({ body: "one" });
      await second.createSender("js").sendMessages({ body: "two" });
      assert.deepEqual([await bodies(first, 1), await bodies(second, 1)], [["one"], ["two"]]);
    } finally {
      await Promise.all([first.close(), second.close()]);
    }
  },
  "foreign-key": async () => {
    const client = new ServiceBusClient(process.env.PARTIBUS_FOREIGN_CONNECTION_STRING, options);
    try {
      const refused = await rejection(client.createSender("js").sendMessages({ body: "refused" }));
      assert.match(refused.code ?? refused.name, /Unauthorized/i, String(refused));
    } finally {
      await client.close();
    }
  },
};

await run(scenarios);
