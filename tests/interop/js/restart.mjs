// @azure/service-bus, unchanged, sends and receives while the broker is stopped and started again.
import { ServiceBusClient } from "@azure/service-bus";
import { connectionString, run, sleep } from "./harness.mjs";

const queue = process.env.PARTIBUS_QUEUE;
const untilMs = Number(process.env.PARTIBUS_UNTIL_MS);
const AT_ONCE = 5;

const scenarios = {
  // Returns the ids of the messages that were accepted, and [id, sequence number] of those that were received.
  restart: async () => {
    // For so long, the client waits for the outcomes of what it has sent on a connection that has ended.
    const client = new ServiceBusClient(connectionString, { retryOptions: { retryDelayInMs: 200, timeoutInMs: 8000 } });
    const accepted = [];
    const received = [];
    try {
      const receiver = client.createReceiver(queue);
      receiver.subscribe(
        {
          processMessage: async (message) => {
            received.push([message.messageId, String(message.sequenceNumber)]);
            try {
              await receiver.completeMessage(message);
            } catch {
              // its lock is lost: it comes again
            }
          },
          processError: async () => {},
        },
        { autoCompleteMessages: false, maxConcurrentCalls: AT_ONCE },
      );
      const sender = client.createSender(queue);
      const send = async (worker) => {
        for (let number = 0; number < 10 || Date.now() < untilMs; number += 1) {
          const messageId = `js-${worker}-${number}`;
          while (!accepted.includes(messageId)) {
            try {
              await sender.sendMessages({ body: "x", messageId });
              accepted.push(messageId);
            } catch {
              await sleep(100); // the client does not try again when it cannot connect
            }
          }
          await sleep(2);
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, (_, worker) => send(worker)));
      await receiver.close();
    } finally {
      await client.close();
    }
    return JSON.stringify({ accepted, received });
  },
};

await run(scenarios);
