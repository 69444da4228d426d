package interop;

import static interop.Bench.message;
import static interop.Bench.one;

import com.azure.core.amqp.exception.AmqpErrorCondition;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.CompleteOptions;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/** Provokes the refusals of error_table.py, and reports each as "reason|transient|text". */
final class Refusals {
    static final boolean WANTED = System.getenv("PARTIBUS_STAGE_URL") != null;

    /** The environment variables with the connection strings of those that need one of their own. */
    static final Map<String, String> CONNECTION_STRINGS = Map.of(
        "wrong-key", "PARTIBUS_CONNECTION_STRING_WRONG_KEY",
        "expired-token", "PARTIBUS_CONNECTION_STRING_EXPIRED",
        "missing-claim", "PARTIBUS_CONNECTION_STRING_LISTEN");

    private static final Map<String, Scenario> ALL = Map.ofEntries(
        Map.entry("send-to-no-entity", Refusals::send),
        Map.entry("receive-from-no-entity", Refusals::receive),
        Map.entry("wrong-key", Refusals::send),
        Map.entry("expired-token", Refusals::send),
        Map.entry("missing-claim", Refusals::send),
        Map.entry("message-too-large", bench -> bench.send(filled(2_000_000))),
        Map.entry("send-to-disabled", Refusals::send),
        Map.entry("receive-from-disabled", Refusals::receive),
        Map.entry("send-disabled", Refusals::send),
        Map.entry("receive-disabled", Refusals::receive),
        Map.entry("disabled-beside-sender", bench -> sendAround(bench, "SendDisabled")),
        Map.entry("disabled-beside-receiver", bench -> receiveAround(bench, "ReceiveDisabled")),
        Map.entry("deleted-beside-sender", bench -> sendAround(bench, "delete")),
        Map.entry("deleted-beside-receiver", bench -> receiveAround(bench, "delete")),
        Map.entry("quota-exceeded", bench -> bench.send(filled(500_000))),
        Map.entry("session-state-too-large", bench -> bench.sessions().acceptSession("s").setSessionState(new byte[1025])),
        Map.entry("too-many-session-states", Refusals::tooManySessionStates),
        Map.entry("message-lock-lost", Refusals::messageLockLost),
        Map.entry("session-lock-lost", Refusals::sessionLockLost),
        Map.entry("session-held", Refusals::sessionHeld),
        Map.entry("no-session-free", bench -> bench.sessions().acceptNextSession()),
        Map.entry("deferred-message-unknown", bench -> bench.receiver().receiveDeferredMessage(12_345)),
        Map.entry("batch-with-two-keys", Refusals::batchWithTwoKeys),
        Map.entry("message-without-session", Refusals::send),
        Map.entry("receiver-without-session", Refusals::receive),
        Map.entry("receiver-beside-forwarding", Refusals::receive),
        Map.entry("session-of-none", bench -> bench.sessions().acceptSession("s")),
        Map.entry("session-id-too-long", bench -> bench.sessions().acceptSession("s".repeat(129))),
        Map.entry("send-to-dead-letters", bench -> bench.sender(bench.queue + "/$deadletterqueue").sendMessage(message("x", "x"))),
        Map.entry("receive-from-topic", Refusals::receive),
        Map.entry("rule-exists", bench -> addRule(bench, "$Default", "1 = 1")),
        Map.entry("rule-missing", bench -> bench.rules(bench.queue, "all").deleteRule("none")),
        Map.entry("rule-invalid", bench -> addRule(bench, "wrong", "a = )")),
        Map.entry("partition-unavailable", bench -> bench.send(keyed("k"))),
        Map.entry("transaction-with-two-keys", bench -> commit(bench, keyed("one"), keyed("two"))),
        Map.entry("transaction-without-key", bench -> commit(bench, keyed("one"), message("x", "x"))),
        Map.entry("transaction-of-two-entities", Refusals::transactionOfTwoEntities),
        Map.entry("transaction-too-late", Refusals::transactionTooLate));

    static boolean has(String name) {
        return WANTED && ALL.containsKey(name);
    }

    static String provoke(String name, Bench bench) {
        try {
            ALL.get(name).run(bench);
        } catch (RuntimeException refused) {
            return account(refused);
        }
        throw new AssertionError("not refused");
    }

    /** The client wraps most errors, some of them twice. An application looks for the first one that says more than GENERAL_ERROR. */
    private static String account(RuntimeException refused) {
        Throwable last = refused;
        for (Throwable each = refused; each != null; each = each.getCause()) {
            if (each instanceof ServiceBusException found && found.getReason() != ServiceBusFailureReason.GENERAL_ERROR) {
                return found.getReason() + "|" + found.isTransient() + "|" + found;
            }
            if (each instanceof AmqpException found) {
                AmqpErrorCondition condition = found.getErrorCondition();
                String reason = condition == null ? "AmqpException" : condition.getErrorCondition();
                return reason + "|" + found.isTransient() + "|" + found;
            }
            last = each;
        }
        return last.getClass().getSimpleName() + "|false|" + last;
    }

    private static ServiceBusMessage keyed(String key) {
        return message("x", key).setPartitionKey(key);
    }

    private static ServiceBusMessage filled(int size) {
        return new ServiceBusMessage(BinaryData.fromBytes(new byte[size]));
    }

    private static void send(Bench bench) {
        bench.send(message("x", "x"));
    }

    private static void receive(Bench bench) {
        bench.receiver().receiveMessages(1, Duration.ofSeconds(10)).stream().toList();
    }

    private static void sendAround(Bench bench, String change) {
        ServiceBusSenderClient sender = bench.sender();
        sender.sendMessage(message("x", "x"));
        stage(change, bench.queue);
        sender.sendMessage(message("y", "y"));
    }

    private static void receiveAround(Bench bench, String change) {
        ServiceBusReceiverClient receiver = bench.receiver();
        receiver.peekMessage();
        CompletableFuture<Void> changed = CompletableFuture.runAsync(() -> {
            Scenarios.sleep(Duration.ofMillis(500));
            stage(change, bench.queue);
        });
        try {
            receiver.receiveMessages(1, Duration.ofSeconds(20)).stream().toList();
        } finally {
            changed.join();
        }
    }

    private static void messageLockLost(Bench bench) {
        send(bench);
        ServiceBusReceiverClient receiver = bench.receiver();
        ServiceBusReceivedMessage message = one(receiver);
        one(bench.receiver()); // once the lock is lost
        receiver.complete(message);
    }

    private static void sessionLockLost(Bench bench) {
        ServiceBusReceiverClient receiver = bench.sessions().acceptSession("s");
        Scenarios.sleep(Duration.ofMillis(Long.parseLong(System.getenv("PARTIBUS_LOCK_MS")) + 500));
        receiver.setSessionState(new byte[1]);
    }

    private static void tooManySessionStates(Bench bench) {
        for (String id : List.of("one", "two")) {
            bench.sessions().acceptSession(id).setSessionState(new byte[1]);
        }
    }

    private static void sessionHeld(Bench bench) {
        bench.sessions().acceptSession("s");
        try (Bench other = bench.another()) { // one connection has one link for each session
            other.sessions().acceptSession("s");
        }
    }

    private static void batchWithTwoKeys(Bench bench) {
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        batch.tryAddMessage(keyed("one"));
        batch.tryAddMessage(keyed("two"));
        sender.sendMessages(batch);
    }

    private static void addRule(Bench bench, String name, String expression) {
        bench.rules(bench.queue, "all").createRule(name, new CreateRuleOptions(new SqlRuleFilter(expression)));
    }

    private static void commit(Bench bench, ServiceBusMessage... messages) {
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusTransactionContext txn = sender.createTransaction();
        for (ServiceBusMessage message : messages) {
            sender.sendMessage(message, txn);
        }
        sender.commitTransaction(txn);
    }

    private static void transactionOfTwoEntities(Bench bench) {
        bench.send(keyed("one"));
        ServiceBusReceiverClient receiver = bench.receiver();
        ServiceBusReceivedMessage found = one(receiver);
        ServiceBusSenderClient other = bench.sender(bench.queue.replace("of-two-entities", "with-two-keys"));
        ServiceBusTransactionContext txn = receiver.createTransaction();
        receiver.complete(found, new CompleteOptions().setTransactionContext(txn));
        other.sendMessage(keyed("one"), txn);
        receiver.commitTransaction(txn);
    }

    private static void transactionTooLate(Bench bench) {
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusTransactionContext txn = sender.createTransaction();
        sender.sendMessage(keyed("one"), txn);
        Scenarios.sleep(Duration.ofMillis(Long.parseLong(System.getenv("PARTIBUS_TRANSACTION_MS")) + 500));
        sender.commitTransaction(txn);
    }

    /** Has the test change the queue. */
    private static void stage(String change, String queue) {
        URI uri = URI.create(System.getenv("PARTIBUS_STAGE_URL") + "/" + change + "/" + queue);
        try {
            int status = HttpClient.newHttpClient().send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.discarding()).statusCode();
            Bench.equal(status, 200, "stage");
        } catch (IOException | InterruptedException failed) {
            throw new AssertionError(failed);
        }
    }
}
