package interop;

import static interop.Bench.empty;
import static interop.Bench.equal;
import static interop.Bench.exactly;
import static interop.Bench.ids;
import static interop.Bench.idsUpTo;
import static interop.Bench.message;
import static interop.Bench.numbered;
import static interop.Bench.one;

import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BiConsumer;
import java.util.function.BiFunction;

/** The scenarios, by name. */
final class Scenarios {
    static final Map<String, Scenario> ALL = Map.ofEntries(
        Map.entry("send-one", Scenarios::sendOne),
        Map.entry("send-many", Scenarios::sendMany),
        Map.entry("send-batch", Scenarios::sendBatch),
        Map.entry("receive-and-delete", Scenarios::receiveAndDelete),
        Map.entry("complete", Scenarios::complete),
        Map.entry("abandon", Scenarios::abandon),
        Map.entry("abandon-with-properties", Scenarios::abandonWithProperties),
        Map.entry("defer-with-properties", Scenarios::deferWithProperties),
        Map.entry("dead-letter-with-properties", Scenarios::deadLetterWithProperties),
        Map.entry("defer-and-fetch", Scenarios::deferAndFetch),
        Map.entry("schedule-and-cancel", Scenarios::scheduleAndCancel),
        Map.entry("sessions", Scenarios::sessions),
        Map.entry("dead-letter", Scenarios::deadLetter),
        Map.entry("peek-pages", Scenarios::peekPages),
        Map.entry("renew-lock", Scenarios::renewLock),
        Map.entry("max-delivery-count", Scenarios::maxDeliveryCount),
        Map.entry("time-to-live", Scenarios::timeToLive),
        Map.entry("large-message", Scenarios::largeMessage),
        Map.entry("message-too-large", Scenarios::messageTooLarge),
        Map.entry("unknown-queue", Scenarios::unknownQueue),
        Map.entry("wrong-key", Scenarios::wrongKey),
        Map.entry("transaction-commit", Scenarios::transactionCommit),
        Map.entry("transaction-roll-back", Scenarios::transactionRollBack),
        Map.entry("transaction-over-entities", Scenarios::transactionOverEntities),
        Map.entry("transaction-drains-a-full-queue", Scenarios::transactionDrainsAFullQueue),
        Map.entry("transaction-schedules", Scenarios::transactionSchedules),
        Map.entry("transaction-refusals", Scenarios::transactionRefusals),
        Map.entry("transaction-in-a-session", Scenarios::transactionInASession));

    private static final Map<String, Object> CHANGES = Map.of("replaced", "new", "added", 5L);

    private static void sendOne(Bench bench) {
        ServiceBusMessage sent = new ServiceBusMessage("one").setSubject("greeting");
        sent.getApplicationProperties().putAll(Map.of("whole", 7L, "fraction", 1.5, "yes", true, "text", "t"));
        bench.send(sent);
        ServiceBusReceiverClient receiver = bench.receiver();
        ServiceBusReceivedMessage message = one(receiver);
        equal(message.getBody().toString(), "one", "body");
        equal(message.getSubject(), "greeting", "subject");
        equal(message.getApplicationProperties(), sent.getApplicationProperties(), "application properties");
        equal(message.getDeliveryCount(), 0L, "delivery count");
        equal(message.getLockedUntil().isAfter(OffsetDateTime.now()), true, "locked until later");
        receiver.complete(message);
        empty(receiver);
    }

    private static void sendMany(Bench bench) {
        bench.send(numbered(60));
        ServiceBusReceiverClient receiver = bench.receiver();
        List<ServiceBusReceivedMessage> found = exactly(receiver, 60);
        found.forEach(receiver::complete);
        equal(ids(found), idsUpTo(60), "received");
        empty(receiver);
    }

    private static void sendBatch(Bench bench) {
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        for (ServiceBusMessage message : numbered(100)) {
            equal(batch.tryAddMessage(message), true, "the batch takes the message");
        }
        sender.sendMessages(batch);
        List<ServiceBusReceivedMessage> found = exactly(bench.deletingReceiver(), 100);
        equal(ids(found), idsUpTo(100), "received");
        found.forEach(message -> equal(message.getBody().toString().startsWith("message "), true, "body"));
    }

    private static void receiveAndDelete(Bench bench) {
        bench.send(numbered(10));
        ServiceBusReceiverClient receiver = bench.deletingReceiver();
        equal(ids(exactly(receiver, 10)), idsUpTo(10), "received");
        receiver.close();
        empty(bench.receiver());
    }

    private static void complete(Bench bench) {
        bench.send(numbered(5));
        ServiceBusReceiverClient receiver = bench.receiver();
        exactly(receiver, 5).forEach(receiver::complete);
        receiver.close();
        ServiceBusReceiverClient other = bench.receiver();
        empty(other);
        equal(other.peekMessages(10).stream().count(), 0L, "peeked");
    }

    private static void abandon(Bench bench) {
        bench.send(message("again", "m"));
        ServiceBusReceiverClient receiver = bench.receiver();
        for (long attempt = 0; attempt < 3; attempt++) {
            ServiceBusReceivedMessage message = one(receiver);
            equal(message.getDeliveryCount(), attempt, "delivery count");
            receiver.abandon(message);
        }
        ServiceBusReceivedMessage message = one(receiver);
        equal(message.getDeliveryCount(), 3L, "delivery count");
        receiver.complete(message);
    }

    /** Sends a message, settles it with changed properties, and looks at it again. */
    private static ServiceBusReceivedMessage changed(
        Bench bench,
        BiConsumer<ServiceBusReceiverClient, ServiceBusReceivedMessage> settle,
        BiFunction<ServiceBusReceiverClient, Long, ServiceBusReceivedMessage> again) {
        ServiceBusMessage sent = new ServiceBusMessage("x");
        sent.getApplicationProperties().putAll(Map.of("kept", "yes", "replaced", "old"));
        bench.send(sent);
        ServiceBusReceiverClient receiver = bench.receiver();
        ServiceBusReceivedMessage message = one(receiver);
        settle.accept(receiver, message);
        ServiceBusReceivedMessage next = again.apply(receiver, message.getSequenceNumber());
        equal(next.getApplicationProperties().get("kept"), "yes", "what was not changed");
        equal(next.getApplicationProperties().get("replaced"), "new", "what was replaced");
        equal(next.getApplicationProperties().get("added"), 5L, "what was added");
        equal(next.getBody().toString(), "x", "body");
        return next;
    }

    private static void abandonWithProperties(Bench bench) {
        AbandonOptions options = new AbandonOptions().setPropertiesToModify(CHANGES);
        ServiceBusReceivedMessage next =
            changed(bench, (receiver, message) -> receiver.abandon(message, options), (receiver, number) -> one(receiver));
        equal(next.getDeliveryCount(), 1L, "delivery count");
    }

    private static void deferWithProperties(Bench bench) {
        DeferOptions options = new DeferOptions().setPropertiesToModify(CHANGES);
        changed(bench, (receiver, message) -> receiver.defer(message, options), ServiceBusReceiverClient::receiveDeferredMessage);
    }

    private static void deadLetterWithProperties(Bench bench) {
        DeadLetterOptions options =
            new DeadLetterOptions().setDeadLetterReason("r").setDeadLetterErrorDescription("d").setPropertiesToModify(CHANGES);
        ServiceBusReceivedMessage dead =
            changed(bench, (receiver, message) -> receiver.deadLetter(message, options), (receiver, number) -> one(bench.deadLetters()));
        equal(dead.getDeadLetterReason(), "r", "reason");
    }

    private static void deferAndFetch(Bench bench) {
        bench.send(new ServiceBusMessage("later").setPartitionKey("k"), new ServiceBusMessage("later still").setPartitionKey("k"));
        ServiceBusReceiverClient receiver = bench.receiver();
        List<ServiceBusReceivedMessage> deferred = exactly(receiver, 2);
        deferred.forEach(receiver::defer);
        empty(receiver);
        List<Long> numbers = deferred.stream().map(ServiceBusReceivedMessage::getSequenceNumber).toList();
        List<ServiceBusReceivedMessage> fetched = receiver.receiveDeferredMessageBatch(numbers).stream().toList();
        equal(fetched.stream().map(message -> message.getBody().toString()).toList(), List.of("later", "later still"), "fetched");
        fetched.forEach(receiver::complete);
        equal(bench.receiver().peekMessages(10).stream().count(), 0L, "peeked");
    }

    private static void scheduleAndCancel(Bench bench) {
        ServiceBusSenderClient sender = bench.sender();
        OffsetDateTime soon = OffsetDateTime.now().plusSeconds(3);
        OffsetDateTime late = OffsetDateTime.now().plusHours(1);
        List<Long> numbers = new ArrayList<>();
        sender.scheduleMessages(Arrays.asList(numbered(3)), soon).forEach(numbers::add);
        equal(numbers.stream().distinct().count(), 3L, "sequence numbers");
        sender.cancelScheduledMessage(sender.scheduleMessage(message("late", "late"), late));
        sender.cancelScheduledMessages(sender.scheduleMessages(List.of(message("later", "later"), message("latest", "latest")), late));
        ServiceBusReceiverClient receiver = bench.receiver();
        List<ServiceBusReceivedMessage> due = exactly(receiver, 3);
        equal(ids(due), idsUpTo(3), "due");
        for (ServiceBusReceivedMessage message : due) {
            equal(message.getEnqueuedTime().isBefore(message.getScheduledEnqueueTime()), false, "enqueued before its time");
            receiver.complete(message);
        }
        equal(bench.receiver().peekMessages(10).stream().count(), 0L, "peeked");
    }

    private static void deadLetter(Bench bench) {
        bench.send(message("spoilt", "m"));
        ServiceBusReceiverClient receiver = bench.receiver();
        receiver.deadLetter(
            one(receiver), new DeadLetterOptions().setDeadLetterReason("no good").setDeadLetterErrorDescription("it cannot be read"));
        empty(receiver);
        ServiceBusReceiverClient letters = bench.deadLetters();
        ServiceBusReceivedMessage dead = one(letters);
        equal(dead.getBody().toString(), "spoilt", "body");
        equal(dead.getDeadLetterReason(), "no good", "reason");
        equal(dead.getDeadLetterErrorDescription(), "it cannot be read", "description");
        letters.complete(dead);
        empty(letters);
    }

    private static void peekPages(Bench bench) {
        bench.send(numbered(30));
        ServiceBusReceiverClient receiver = bench.receiver();
        List<ServiceBusReceivedMessage> seen = new ArrayList<>();
        while (true) {
            List<ServiceBusReceivedMessage> page = receiver.peekMessages(7).stream().toList();
            if (page.isEmpty()) {
                break;
            }
            seen.addAll(page);
            equal(page.size() <= 7 && seen.size() <= 30, true, "paging shows each message once");
        }
        equal(ids(seen), idsUpTo(30), "peeked");
        equal(ids(exactly(receiver, 30)), idsUpTo(30), "received afterwards");
    }

    private static void sessions(Bench bench) {
        for (String body : List.of("a1", "b1", "a2", "a3")) {
            bench.send(message(body, body).setSessionId(body.substring(0, 1)));
        }
        ServiceBusSessionReceiverClient accepting = bench.sessions();
        ServiceBusReceiverClient receiver = accepting.acceptSession("a");
        equal(receiver.getSessionId(), "a", "session");
        List<ServiceBusReceivedMessage> found = exactly(receiver, 3);
        equal(found.stream().map(each -> each.getBody().toString()).toList(), List.of("a1", "a2", "a3"), "in order");
        receiver.abandon(found.get(0));
        ServiceBusReceivedMessage again = one(receiver);
        equal(again.getBody() + " " + again.getDeliveryCount(), "a1 1", "abandoned");
        receiver.complete(again);
        receiver.defer(found.get(1));
        ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(found.get(1).getSequenceNumber());
        equal(deferred.getBody() + " of " + deferred.getSessionId(), "a2 of a", "deferred");
        receiver.complete(deferred);
        equal(receiver.peekMessages(10).stream().map(each -> each.getBody().toString()).toList(), List.of("a3"), "peeked");
        equal(receiver.renewSessionLock().isAfter(OffsetDateTime.now()), true, "renewed");
        receiver.setSessionState("seen".getBytes());
        equal(new String(receiver.getSessionState()), "seen", "state");
        receiver.setSessionState(null);
        equal(receiver.getSessionState() == null, true, "the state is cleared");
        receiver.close();
        Map<String, String> next = new TreeMap<>();
        for (int round = 0; round < 2; round++) {
            ServiceBusReceiverClient one = accepting.acceptNextSession();
            next.put(one.getSessionId(), one(one).getBody().toString());
        }
        equal(next, Map.of("a", "a3", "b", "b1"), "next sessions");
    }

    private static void renewLock(Bench bench) {
        Duration lock = Duration.ofSeconds(Long.parseLong(System.getenv("PARTIBUS_LOCK_SHORT_S")));
        bench.send(message("slow work", "m"));
        ServiceBusReceiverClient receiver = bench.receiver();
        ServiceBusReceivedMessage message = one(receiver);
        OffsetDateTime first = message.getLockedUntil();
        sleep(lock.multipliedBy(7).dividedBy(10));
        OffsetDateTime renewed = receiver.renewMessageLock(message);
        equal(renewed.isBefore(first.plus(lock.dividedBy(2))), false, "renewed from " + first + " to " + renewed);
        sleep(lock.dividedBy(2));
        receiver.complete(message);
        empty(receiver);
    }

    private static void maxDeliveryCount(Bench bench) {
        bench.send(message("poison", "m"));
        ServiceBusReceiverClient receiver = bench.receiver();
        for (long attempt = 0; attempt < 2; attempt++) {
            ServiceBusReceivedMessage message = one(receiver);
            equal(message.getDeliveryCount(), attempt, "delivery count");
            receiver.abandon(message);
        }
        empty(receiver);
        equal(one(bench.deadLetters()).getDeadLetterReason(), "MaxDeliveryCountExceeded", "reason");
    }

    private static void timeToLive(Bench bench) {
        bench.send(new ServiceBusMessage("brief").setTimeToLive(Duration.ofSeconds(1)));
        sleep(Duration.ofMillis(1200));
        empty(bench.receiver());
        equal(one(bench.deadLetters()).getDeadLetterReason(), "TTLExpiredException", "reason");
    }

    private static void largeMessage(Bench bench) {
        int[] sizes = {1, 65_535, 262_144, 900_000};
        for (int size : sizes) {
            bench.send(new ServiceBusMessage(BinaryData.fromBytes(filled(size))).setMessageId(Integer.toString(size)));
        }
        for (ServiceBusReceivedMessage message : exactly(bench.deletingReceiver(), sizes.length)) {
            byte[] expected = filled(Integer.parseInt(message.getMessageId()));
            equal(Arrays.equals(message.getBody().toBytes(), expected), true, message.getMessageId());
        }
    }

    private static byte[] filled(int size) {
        byte[] bytes = new byte[size];
        Arrays.fill(bytes, (byte) (size % 251));
        return bytes;
    }

    private static void messageTooLarge(Bench bench) {
        ServiceBusException refused = refusal(() -> bench.send(new ServiceBusMessage(BinaryData.fromBytes(new byte[2_000_000]))));
        equal(refused.getReason(), ServiceBusFailureReason.MESSAGE_SIZE_EXCEEDED, refused.toString());
        bench.send(message("small", "m"));
        one(bench.receiver());
    }

    private static void unknownQueue(Bench bench) {
        ServiceBusException refused = refusal(() -> bench.send(message("x", "m")));
        equal(refused.getReason(), ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, refused.toString());
    }

    private static void wrongKey(Bench bench) {
        ServiceBusException refused = refusal(() -> bench.send(message("x", "m")));
        equal(refused.getReason(), ServiceBusFailureReason.UNAUTHORIZED, refused.toString());
    }

    private static ServiceBusMessage keyed(String id) {
        return message("message " + id, id).setPartitionKey("k");
    }

    private static void transactionCommit(Bench bench) {
        bench.send(keyed("0"), keyed("1"), keyed("2"), keyed("3"), keyed("4"));
        ServiceBusReceiverClient receiver = bench.receiver();
        List<ServiceBusReceivedMessage> found = exactly(receiver, 5);
        receiver.defer(found.get(4));
        ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(found.get(4).getSequenceNumber());
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusTransactionContext txn = sender.createTransaction();
        sender.sendMessage(keyed("5"), txn);
        sender.sendMessages(List.of(keyed("6"), keyed("7")), txn);
        receiver.complete(found.get(0), new CompleteOptions().setTransactionContext(txn));
        receiver.abandon(found.get(1), new AbandonOptions().setTransactionContext(txn));
        receiver.deadLetter(found.get(2), new DeadLetterOptions().setTransactionContext(txn));
        receiver.defer(found.get(3), new DeferOptions().setTransactionContext(txn));
        receiver.complete(deferred, new CompleteOptions().setTransactionContext(txn));
        equal(ids(receiver.peekMessages(20).stream().toList()), List.of("0", "1", "2", "3", "4"), "before the commit");
        sender.commitTransaction(txn);
        equal(ids(bench.receiver().peekMessages(20).stream().toList()), List.of("1", "3", "5", "6", "7"), "after the commit");
        List<ServiceBusReceivedMessage> left = exactly(receiver, 4);
        equal(ids(left), List.of("1", "5", "6", "7"), "left");
        equal(ids(exactly(bench.deadLetters(), 1)), List.of("2"), "dead letters");
    }

    private static void transactionRollBack(Bench bench) {
        bench.send(keyed("0"));
        ServiceBusReceiverClient receiver = bench.receiver();
        ServiceBusReceivedMessage found = one(receiver);
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusTransactionContext txn = sender.createTransaction();
        sender.sendMessage(keyed("1"), txn);
        receiver.complete(found, new CompleteOptions().setTransactionContext(txn));
        sender.rollbackTransaction(txn);
        equal(ids(receiver.peekMessages(20).stream().toList()), List.of("0"), "after the roll-back");
    }

    /** Completing a message of one queue and sending to two others is all or nothing; the first queue passes the messages on. */
    private static void transactionOverEntities(Bench bench) {
        bench.send(keyed("0"), keyed("1"));
        String to = bench.queue + ".to";
        String too = bench.queue + ".too";
        Bench.Crossing crossing = bench.crossing();
        ServiceBusReceiverClient receiver = crossing.receiver(bench.queue);
        List<ServiceBusReceivedMessage> found = exactly(receiver, 2);
        ServiceBusSenderClient sender = crossing.sender(to);
        ServiceBusSenderClient other = crossing.sender(too);
        ServiceBusTransactionContext rolledBack = sender.createTransaction();
        sender.sendMessage(keyed("never"), rolledBack);
        receiver.complete(found.get(0), new CompleteOptions().setTransactionContext(rolledBack));
        sender.rollbackTransaction(rolledBack);
        ServiceBusTransactionContext txn = sender.createTransaction();
        receiver.complete(found.get(1), new CompleteOptions().setTransactionContext(txn));
        sender.sendMessage(keyed("2"), txn);
        sender.sendMessages(List.of(message("3", "3"), message("4", "4").setPartitionKey("other")), txn);
        other.sendMessage(message("5", "5"), txn);
        sender.commitTransaction(txn);
        equal(ids(exactly(bench.receiver(to), 3)), List.of("2", "3", "4"), "sent to the second queue");
        equal(ids(exactly(bench.receiver(too), 1)), List.of("5"), "sent to the third queue");
        equal(ids(bench.receiver().peekMessages(20).stream().toList()), ids(List.of(found.get(0))), "left in the first queue");
    }

    /** What a transaction completes in a full queue makes room for what it sends through the queue. */
    private static void transactionDrainsAFullQueue(Bench bench) {
        byte[] body = new byte[250_000];
        for (int number = 0; number < 4; number++) {
            bench.send(new ServiceBusMessage(body));
        }
        Bench.Crossing crossing = bench.crossing();
        ServiceBusReceiverClient receiver = crossing.receiver(bench.queue);
        List<ServiceBusReceivedMessage> found = exactly(receiver, 4);
        ServiceBusSenderClient sender = crossing.sender(bench.queue + ".to");
        for (ServiceBusReceivedMessage each : found) {
            ServiceBusTransactionContext txn = sender.createTransaction();
            sender.sendMessage(new ServiceBusMessage(each.getBody()), txn);
            receiver.complete(each, new CompleteOptions().setTransactionContext(txn));
            sender.commitTransaction(txn);
        }
        equal(bench.receiver().peekMessages(20).stream().count(), 0L, "left in the full queue");
        equal((long) exactly(bench.receiver(bench.queue + ".to"), 4).size(), 4L, "sent to the other one");
    }

    private static void transactionSchedules(Bench bench) {
        ServiceBusSenderClient sender = bench.sender();
        OffsetDateTime soon = OffsetDateTime.now().plusSeconds(2);
        OffsetDateTime tomorrow = OffsetDateTime.now().plusDays(1);
        ServiceBusTransactionContext rolledBack = sender.createTransaction();
        sender.scheduleMessage(keyed("never"), soon, rolledBack);
        sender.rollbackTransaction(rolledBack);
        ServiceBusTransactionContext txn = sender.createTransaction();
        long number = sender.scheduleMessage(keyed("tomorrow"), tomorrow, txn);
        sender.sendMessage(keyed("now"), txn);
        sender.sendMessage(keyed("later").setScheduledEnqueueTime(soon), txn);
        equal(bench.receiver().peekMessages(20).stream().count(), 0L, "before the commit");
        sender.commitTransaction(txn);
        ServiceBusReceivedMessage seen = bench.receiver().peekMessages(20).stream().findFirst().orElseThrow();
        equal(List.of(seen.getMessageId(), seen.getSequenceNumber()), List.of("tomorrow", number), "the promised number");
        sender.cancelScheduledMessage(number);
        equal(ids(exactly(bench.receiver(), 2)).stream().sorted().toList(), List.of("later", "now"), "received");
    }

    private static void transactionRefusals(Bench bench) {
        ServiceBusSenderClient sender = bench.sender();
        for (ServiceBusMessage second : List.of(message("x", "other").setPartitionKey("other"), message("x", "without"))) {
            ServiceBusTransactionContext txn = sender.createTransaction();
            sender.sendMessage(keyed("1"), txn);
            sender.sendMessage(second, txn); // this client takes every outcome of a send in a transaction for success
            Throwable rolledBack = failure(() -> sender.commitTransaction(txn));
            equal(rolledBack.toString().contains("amqp:transaction:rollback"), true, rolledBack.toString());
        }
        equal(bench.receiver().peekMessages(20).stream().count(), 0L, "kept");
    }

    /** A handler of a session takes its message and sends the next one of the session together. */
    private static void transactionInASession(Bench bench) {
        bench.send(message("1", "1").setSessionId("a"), message("other", "other").setSessionId("b"));
        ServiceBusReceiverClient receiver = bench.sessions().acceptSession("a");
        ServiceBusReceivedMessage found = one(receiver);
        ServiceBusSenderClient sender = bench.sender();
        ServiceBusTransactionContext txn = sender.createTransaction();
        receiver.complete(found, new CompleteOptions().setTransactionContext(txn));
        sender.sendMessage(message("2", "2").setSessionId("a"), txn);
        sender.commitTransaction(txn);
        ServiceBusReceivedMessage next = one(receiver);
        equal(List.of(next.getMessageId(), next.getSessionId()), List.of("2", "a"), "the next message");
        ServiceBusTransactionContext refused = sender.createTransaction();
        receiver.complete(next, new CompleteOptions().setTransactionContext(refused));
        sender.sendMessage(message("3", "3").setSessionId("a"), refused);
        sender.sendMessage(message("4", "4").setSessionId("b"), refused);
        String why = failure(() -> sender.commitTransaction(refused)).toString();
        equal(why.contains("'a'") && why.contains("'b'"), true, "both sessions are named in " + why);
    }

    static Throwable failure(Runnable action) {
        try {
            action.run();
        } catch (RuntimeException failed) {
            return failed;
        }
        throw new AssertionError("no error");
    }

    private static ServiceBusException refusal(Runnable action) {
        try {
            action.run();
        } catch (ServiceBusException refused) {
            return refused;
        }
        throw new AssertionError("no error");
    }

    static void sleep(Duration duration) {
        try {
            Thread.sleep(duration.toMillis());
        } catch (InterruptedException stopped) {
            throw new AssertionError(stopped);
        }
    }
}
