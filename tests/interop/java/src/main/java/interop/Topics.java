package interop;

import static interop.Bench.empty;
import static interop.Bench.equal;
import static interop.Bench.exactly;
import static interop.Bench.ids;
import static interop.Bench.idsUpTo;
import static interop.Bench.message;
import static interop.Bench.numbered;
import static interop.Bench.one;
import static interop.Scenarios.failure;
import static interop.Scenarios.sleep;

import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;

/** Scenarios with topics, by name. topic_scenarios.py says which subscriptions the topic of each has; each subscription gets its copies. */
public final class Topics {
    private static final Map<String, Scenario> ALL = Map.ofEntries(
        Map.entry("publish", Topics::publish),
        Map.entry("filters", Topics::filters),
        Map.entry("typed-filters", Topics::typedFilters),
        Map.entry("settle", Topics::settle),
        Map.entry("renew-lock", Topics::renewLock),
        Map.entry("peek-pages", Topics::peekPages),
        Map.entry("schedule-and-cancel", Topics::scheduleAndCancel),
        Map.entry("sessions", Topics::sessions),
        Map.entry("dead-letters", Topics::deadLetters),
        Map.entry("forwarding", Topics::forwarding),
        Map.entry("rule-manager", Topics::ruleManager),
        Map.entry("transaction", Topics::transaction),
        Map.entry("transaction-in-a-session", Topics::transactionInASession),
        Map.entry("transaction-over-entities", Topics::transactionOverEntities),
        Map.entry("transaction-schedules", Topics::transactionSchedules));

    public static void main(String[] arguments) {
        Main.runAll(ALL);
    }

    private static List<String> bodies(Iterable<ServiceBusReceivedMessage> messages) {
        List<String> found = new ArrayList<>();
        messages.forEach(each -> found.add(each.getBody().toString()));
        return found.stream().sorted().toList();
    }

    /** Takes exactly these messages out of a subscription of the scenario's topic. */
    private static List<ServiceBusReceivedMessage> gets(Bench bench, String subscription, String... wanted) {
        return getsOf(bench, bench.queue, subscription, wanted);
    }

    private static List<ServiceBusReceivedMessage> getsOf(Bench bench, String topic, String subscription, String... wanted) {
        ServiceBusReceiverClient receiver = bench.deletingSubscription(topic, subscription);
        List<ServiceBusReceivedMessage> found = exactly(receiver, wanted.length);
        equal(bodies(found), Stream.of(wanted).sorted().toList(), subscription);
        empty(receiver);
        receiver.close();
        return found;
    }

    /** Why nothing can be received; the client wraps the broker's answer. */
    private static String refusal(ServiceBusReceiverClient receiver) {
        StringBuilder text = new StringBuilder();
        Throwable each = failure(() -> receiver.receiveMessages(1, Duration.ofSeconds(5)).stream().count());
        for (; each != null; each = each.getCause()) {
            text.append(each).append('\n');
        }
        return text.toString();
    }

    private static void publish(Bench bench) {
        ServiceBusSenderClient sender = bench.publisher();
        ServiceBusMessageBatch batch = sender.createMessageBatch();
        for (ServiceBusMessage each : numbered(10)) {
            equal(batch.tryAddMessage(each), true, "the batch takes the message");
        }
        sender.sendMessages(batch);
        sender.sendMessages(List.of(message("of a list", "list-0"), message("of the same list", "list-1")));
        ServiceBusMessage alone = message("alone", "alone").setSubject("s");
        alone.getApplicationProperties().putAll(Map.of("whole", 7L, "yes", true));
        sender.sendMessage(alone);
        for (String subscription : List.of("all", "other")) {
            ServiceBusReceiverClient receiver = bench.deletingSubscription(bench.queue, subscription);
            List<ServiceBusReceivedMessage> found = exactly(receiver, 13);
            ServiceBusReceivedMessage same = found.stream().filter(each -> each.getMessageId().equals("alone")).findFirst().orElseThrow();
            equal(List.of(same.getBody().toString(), same.getSubject(), same.getDeliveryCount()), List.of("alone", "s", 0L), "alone");
            equal(same.getApplicationProperties(), alone.getApplicationProperties(), "application properties");
            empty(receiver);
        }
        String refused = refusal(bench.receiver());
        equal(refused.contains("subscriptions"), true, refused);
    }

    private static void filters(Bench bench) {
        List<ServiceBusMessage> sent = new ArrayList<>();
        for (String label : List.of("red", "blue", "green")) {
            for (int size : new int[] {3, 7}) {
                ServiceBusMessage each = new ServiceBusMessage(label + " " + size).setSubject(label);
                each.getApplicationProperties().put("size", size);
                sent.add(each);
            }
        }
        bench.publisher().sendMessages(sent);
        gets(bench, "true", "red 3", "red 7", "blue 3", "blue 7", "green 3", "green 7");
        gets(bench, "false");
        gets(bench, "correlation", "red 7");
        gets(bench, "sql", "red 7");
        List<ServiceBusReceivedMessage> several = gets(bench, "several", "red 3", "red 7", "blue 3", "green 3", "blue 3", "blue 7");
        List<Object> copies = new ArrayList<>();
        several.stream().filter(each -> each.getSubject().equals("changed")).forEach(each -> copies.add(each.getApplicationProperties()));
        List<Object> wanted = List.of(Map.of("size", 14, "RuleName", "copied"), Map.of("size", 6, "RuleName", "copied"));
        equal(copies.size() == 2 && copies.containsAll(wanted), true, copies.toString());
        gets(bench, "failing");
        List<ServiceBusReceivedMessage> dead = exactly(bench.deadLettersOf("failing"), 3);
        equal(bodies(dead), List.of("blue 7", "green 7", "red 7"), "dead letters");
        dead.forEach(each -> equal(each.getDeadLetterReason(), "FilterException", "reason"));
    }

    private static void typedFilters(Bench bench) {
        ServiceBusMessage message = message("x", "typed").setCorrelationId("c").setTo("t").setReplyTo("r").setContentType("ct").setSubject("l");
        Date at = Date.from(Instant.parse("2020-07-01T00:00:00Z"));
        message.getApplicationProperties().putAll(Map.of("whole", 7L, "fraction", 1.5f, "text", "a_b", "yes", true, "no", false, "at", at));
        bench.publish(message);
        for (String each : List.of("numbers", "texts", "booleans", "dates", "absent", "system", "correlation")) {
            gets(bench, each, "x");
        }
        gets(bench, "unknown");
        gets(bench, "other-value");
    }

    private static void settle(Bench bench) {
        String[] names = {"complete", "abandon", "defer", "dead-letter", "defer, then dead-letter"};
        bench.publish(Stream.of(names).map(ServiceBusMessage::new).toArray(ServiceBusMessage[]::new));
        ServiceBusReceiverClient receiver = bench.subscription("all");
        Map<String, ServiceBusReceivedMessage> found = new TreeMap<>();
        exactly(receiver, names.length).forEach(each -> found.put(each.getBody().toString(), each));
        receiver.complete(found.get("complete"));
        receiver.abandon(found.get("abandon"), new AbandonOptions().setPropertiesToModify(Map.of("tried", "once")));
        receiver.defer(found.get("defer"));
        receiver.defer(found.get("defer, then dead-letter"));
        receiver.deadLetter(
            found.get("dead-letter"), new DeadLetterOptions().setDeadLetterReason("no good").setDeadLetterErrorDescription("why"));
        ServiceBusReceivedMessage again = one(receiver);
        equal(List.of(again.getBody().toString(), again.getDeliveryCount()), List.of("abandon", 1L), "abandoned");
        equal(again.getApplicationProperties(), Map.of("tried", "once"), "changed");
        receiver.complete(again);
        List<ServiceBusReceivedMessage> deferred = receiver.receiveDeferredMessageBatch(
            Stream.of("defer", "defer, then dead-letter").map(name -> found.get(name).getSequenceNumber()).toList()).stream().toList();
        equal(bodies(deferred), List.of("defer", "defer, then dead-letter"), "deferred");
        for (ServiceBusReceivedMessage each : deferred) {
            if (each.getBody().toString().equals("defer")) {
                receiver.complete(each);
            } else {
                receiver.deadLetter(each, new DeadLetterOptions().setDeadLetterReason("later"));
            }
        }
        equal(bench.subscription("all").peekMessages(10).stream().count(), 0L, "left");
        ServiceBusReceiverClient letters = bench.deadLettersOf("all");
        List<ServiceBusReceivedMessage> dead = exactly(letters, 2);
        equal(dead.stream().map(ServiceBusReceivedMessage::getDeadLetterReason).sorted().toList(), List.of("later", "no good"), "reasons");
        dead.forEach(letters::complete);
        empty(letters);
        gets(bench, "other", names); // what one subscription does with its messages is no matter of the others
    }

    private static void renewLock(Bench bench) {
        Duration lock = Duration.ofSeconds(Long.parseLong(System.getenv("PARTIBUS_LOCK_SHORT_S")));
        bench.publish(message("slow work", "m"));
        ServiceBusReceiverClient receiver = bench.subscription("all");
        ServiceBusReceivedMessage message = one(receiver);
        sleep(lock.multipliedBy(7).dividedBy(10));
        receiver.renewMessageLock(message);
        sleep(lock.dividedBy(2));
        receiver.complete(message);
        empty(receiver);
    }

    private static void peekPages(Bench bench) {
        bench.publish(numbered(30));
        bench.publish(message("apart", "apart"));
        ServiceBusReceiverClient receiver = bench.subscription("all");
        List<ServiceBusReceivedMessage> seen = new ArrayList<>();
        for (List<ServiceBusReceivedMessage> page = null; page == null || !page.isEmpty(); seen.addAll(page)) {
            page = receiver.peekMessages(7).stream().toList();
            equal(page.size() <= 7 && seen.size() <= 31, true, "paging shows each message once");
        }
        equal(seen.size(), 31, "peeked");
        equal(ids(exactly(receiver, 31)), ids(seen), "received afterwards");
    }

    private static void scheduleAndCancel(Bench bench) {
        ServiceBusSenderClient sender = bench.publisher();
        OffsetDateTime late = OffsetDateTime.now().plusHours(1);
        List<Long> numbers = new ArrayList<>();
        sender.scheduleMessages(List.of(message("late", "late"), message("later", "later")), late).forEach(numbers::add);
        equal(bench.subscription("all").peekMessages(10).stream().count(), 0L, "until their time, they are the topic's");
        sender.cancelScheduledMessages(numbers);
        sender.scheduleMessages(Arrays.asList(numbered(3)), OffsetDateTime.now().plusSeconds(1)).forEach(numbers::add);
        ServiceBusReceiverClient receiver = bench.subscription("all");
        List<ServiceBusReceivedMessage> due = exactly(receiver, 3);
        equal(ids(due), idsUpTo(3), "due");
        for (ServiceBusReceivedMessage each : due) {
            equal(each.getEnqueuedTime().isBefore(each.getScheduledEnqueueTime()), false, "enqueued before its time");
            receiver.complete(each);
        }
    }

    private static void sessions(Bench bench) {
        for (String body : List.of("a1", "b1", "a2", "a3")) {
            bench.publish(message(body, body).setSessionId(body.substring(0, 1)));
        }
        bench.publish(message("none", "none"));
        ServiceBusSessionReceiverClient accepting = bench.sessionsOf("sessions");
        ServiceBusReceiverClient receiver = accepting.acceptSession("a");
        List<ServiceBusReceivedMessage> found = exactly(receiver, 3);
        equal(found.stream().map(each -> each.getBody().toString()).toList(), List.of("a1", "a2", "a3"), "in order");
        receiver.complete(found.get(0));
        receiver.defer(found.get(1));
        receiver.complete(receiver.receiveDeferredMessage(found.get(1).getSequenceNumber()));
        receiver.setSessionState("seen".getBytes());
        equal(new String(receiver.getSessionState()), "seen", "state");
        equal(receiver.renewSessionLock().isAfter(OffsetDateTime.now()), true, "renewed");
        receiver.abandon(found.get(2));
        receiver.close();
        Map<String, String> next = new TreeMap<>();
        for (int round = 0; round < 2; round++) {
            ServiceBusReceiverClient session = accepting.acceptNextSession();
            next.put(session.getSessionId(), one(session).getBody().toString());
        }
        equal(next, Map.of("a", "a3", "b", "b1"), "next sessions");
        equal(one(bench.deadLettersOf("sessions")).getDeadLetterReason(), "Session id is null.", "reason");
        gets(bench, "plain", "a1", "b1", "a2", "a3", "none");
    }

    private static void deadLetters(Bench bench) {
        bench.publish(message("poison", "m"));
        ServiceBusReceiverClient receiver = bench.subscription("all");
        for (long attempt = 0; attempt < 2; attempt++) {
            ServiceBusReceivedMessage message = one(receiver);
            equal(message.getDeliveryCount(), attempt, "delivery count");
            receiver.abandon(message);
        }
        receiver.close();
        bench.publish(new ServiceBusMessage("brief").setTimeToLive(Duration.ofMillis(500)));
        List<ServiceBusReceivedMessage> dead = exactly(bench.deadLettersOf("all"), 2);
        Map<String, String> reasons = new TreeMap<>();
        dead.forEach(each -> reasons.put(each.getBody().toString(), each.getDeadLetterReason()));
        equal(reasons, Map.of("brief", "TTLExpiredException", "poison", "MaxDeliveryCountExceeded"), "reasons");
    }

    private static void forwarding(Bench bench) {
        bench.publish(message("red", "red").setSubject("red"), message("blue", "blue").setSubject("blue"));
        String queue = bench.queue + ".queue";
        ServiceBusReceiverClient forwarded = bench.receiver(queue);
        List<ServiceBusReceivedMessage> found = exactly(forwarded, 2);
        equal(bodies(found), List.of("blue", "red"), "in the queue");
        found.forEach(forwarded::complete);
        ServiceBusReceivedMessage copy = getsOf(bench, bench.queue + ".topic", "all", "red").get(0);
        equal(copy.getApplicationProperties().get("way"), "changed", "way");
        ServiceBusReceiverClient receiver = bench.subscription("dead-letters-to-queue");
        exactly(receiver, 2).forEach(each -> receiver.deadLetter(each, new DeadLetterOptions().setDeadLetterReason("mine")));
        for (ServiceBusReceivedMessage each : exactly(forwarded, 2)) {
            equal(each.getDeadLetterReason(), "mine", "reason");
            equal(each.getDeadLetterSource(), bench.queue + "/Subscriptions/dead-letters-to-queue", "source");
        }
        String refused = refusal(bench.subscription("to-queue"));
        equal(refused.contains("auto-forwarding enabled"), true, refused);
    }

    private static void ruleManager(Bench bench) {
        ServiceBusRuleManagerClient rules = bench.rules(bench.queue, "all");
        ServiceBusSenderClient sender = bench.publisher();
        Runnable publish = () -> {
            ServiceBusMessage blue = message("blue", "blue").setSubject("blue");
            blue.getApplicationProperties().put("size", 7);
            sender.sendMessages(List.of(message("red", "red").setSubject("red"), blue));
        };
        publish.run();
        CorrelationRuleFilter red = new CorrelationRuleFilter().setLabel("red");
        rules.createRule("red", new CreateRuleOptions(red));
        rules.createRule("sized", new CreateRuleOptions(new SqlRuleFilter("size = 7")).setAction(new SqlRuleAction("SET size = 8")));
        rules.deleteRule("$Default");
        List<RuleProperties> listed = rules.listRules().stream().toList();
        equal(listed.stream().map(RuleProperties::getName).toList(), List.of("red", "sized"), "rules");
        equal(((CorrelationRuleFilter) listed.get(0).getFilter()).getLabel(), "red", "label");
        equal(((SqlRuleFilter) listed.get(1).getFilter()).getSqlExpression(), "size = 7", "expression");
        equal(((SqlRuleAction) listed.get(1).getAction()).getSqlExpression(), "SET size = 8", "action");
        String exists = failure(() -> rules.createRule("RED", new CreateRuleOptions(red))).toString();
        equal(exists.contains("already exists"), true, exists);
        String missing = failure(() -> rules.deleteRule("none")).toString();
        equal(missing.contains("could not be found"), true, missing);
        gets(bench, "all", "red", "blue"); // published under the earlier rule
        publish.run();
        List<ServiceBusReceivedMessage> found = gets(bench, "all", "red", "blue");
        equal(found.stream().anyMatch(each -> Integer.valueOf(8).equals(each.getApplicationProperties().get("size"))), true, "changed");
        rules.deleteRule("sized");
        publish.run();
        gets(bench, "all", "red");
    }

    private static ServiceBusMessage keyed(String id) {
        return message("message " + id, id).setPartitionKey("k");
    }

    /** Settling in a subscription and sending to its topic is one step, for this and every other subscription. */
    private static void transaction(Bench bench) {
        bench.publish(keyed("0"), keyed("1"), keyed("2"), keyed("3"));
        ServiceBusReceiverClient receiver = bench.subscription("all");
        List<ServiceBusReceivedMessage> found = exactly(receiver, 4);
        ServiceBusSenderClient sender = bench.publisher();
        ServiceBusTransactionContext rolledBack = sender.createTransaction();
        sender.sendMessage(keyed("never"), rolledBack);
        receiver.complete(found.get(0), new CompleteOptions().setTransactionContext(rolledBack));
        sender.rollbackTransaction(rolledBack);
        ServiceBusTransactionContext txn = sender.createTransaction();
        sender.sendMessage(keyed("4"), txn);
        sender.sendMessages(List.of(keyed("5"), keyed("6")), txn);
        receiver.complete(found.get(1), new CompleteOptions().setTransactionContext(txn));
        receiver.deadLetter(found.get(2), new DeadLetterOptions().setTransactionContext(txn));
        receiver.defer(found.get(3), new DeferOptions().setTransactionContext(txn));
        equal(ids(bench.subscription("all").peekMessages(20).stream().toList()), List.of("0", "1", "2", "3"), "before the commit");
        sender.commitTransaction(txn);
        equal(ids(bench.subscription("all").peekMessages(20).stream().toList()), List.of("0", "3", "4", "5", "6"), "after the commit");
        equal(ids(exactly(receiver, 3)), List.of("4", "5", "6"), "received"); // the roll-back left the lock of the first one
        equal(ids(exactly(bench.deadLettersOf("all"), 1)), List.of("2"), "dead letters");
        List<ServiceBusReceivedMessage> other = exactly(bench.deletingSubscription(bench.queue, "other"), 7);
        equal(ids(other), List.of("0", "1", "2", "3", "4", "5", "6"), "the other subscription");
        ServiceBusTransactionContext refused = sender.createTransaction();
        sender.sendMessage(keyed("7"), refused);
        sender.sendMessage(message("x", "8").setPartitionKey("other"), refused);
        String why = failure(() -> sender.commitTransaction(refused)).toString();
        equal(why.contains("amqp:transaction:rollback"), true, why);
        empty(bench.deletingSubscription(bench.queue, "other"));
    }

    /** A handler of a session takes its message and publishes the next one of the session together. */
    private static void transactionInASession(Bench bench) {
        bench.publish(message("1", "1").setSessionId("a"));
        ServiceBusReceiverClient receiver = bench.sessionsOf("sessions").acceptSession("a");
        ServiceBusReceivedMessage found = one(receiver);
        ServiceBusSenderClient sender = bench.publisher();
        ServiceBusTransactionContext txn = sender.createTransaction();
        receiver.complete(found, new CompleteOptions().setTransactionContext(txn));
        sender.sendMessage(message("2", "2").setSessionId("a"), txn);
        sender.commitTransaction(txn);
        ServiceBusReceivedMessage next = one(receiver);
        equal(List.of(next.getMessageId(), next.getSessionId()), List.of("2", "a"), "the next message");
        ServiceBusTransactionContext refused = sender.createTransaction();
        receiver.complete(next, new CompleteOptions().setTransactionContext(refused));
        sender.sendMessage(message("3", "3").setSessionId("b"), refused);
        String why = failure(() -> sender.commitTransaction(refused)).toString();
        equal(why.contains("key 'b'"), true, why);
        gets(bench, "plain", "1", "2");
    }

    /** What a subscription gives and what is sent to a queue and another topic is one transaction; and from a queue to the topic. */
    private static void transactionOverEntities(Bench bench) {
        String queue = bench.queue + ".queue";
        String other = bench.queue + ".topic";
        bench.publish(keyed("0"), keyed("1"));
        Bench.Crossing crossing = bench.crossing();
        ServiceBusReceiverClient receiver = crossing.subscription(bench.queue, "all");
        List<ServiceBusReceivedMessage> found = exactly(receiver, 2);
        ServiceBusSenderClient toQueue = crossing.sender(queue);
        ServiceBusSenderClient toTopic = crossing.publisher(other);
        ServiceBusTransactionContext rolledBack = toQueue.createTransaction();
        toQueue.sendMessage(keyed("never"), rolledBack);
        toTopic.sendMessage(keyed("never"), rolledBack);
        receiver.complete(found.get(0), new CompleteOptions().setTransactionContext(rolledBack));
        toQueue.rollbackTransaction(rolledBack);
        ServiceBusTransactionContext txn = toQueue.createTransaction();
        receiver.complete(found.get(1), new CompleteOptions().setTransactionContext(txn));
        toQueue.sendMessage(keyed("2"), txn);
        toTopic.sendMessages(List.of(message("3", "3"), message("4", "4").setPartitionKey("another")), txn);
        toQueue.commitTransaction(txn);
        getsOf(bench, other, "all", "3", "4");
        equal(ids(exactly(bench.receiver(queue), 1)), List.of("2"), "in the queue");
        equal(ids(bench.subscription("all").peekMessages(10).stream().toList()), ids(List.of(found.get(0))), "left");

        bench.sender(queue).sendMessage(keyed("5"));
        Bench.Crossing back = bench.crossing();
        ServiceBusReceiverClient fromQueue = back.receiver(queue);
        ServiceBusReceivedMessage last = one(fromQueue);
        ServiceBusSenderClient publisher = back.publisher(other);
        ServiceBusTransactionContext second = publisher.createTransaction();
        fromQueue.complete(last, new CompleteOptions().setTransactionContext(second));
        publisher.sendMessage(message("6", "6"), second);
        publisher.commitTransaction(second);
        getsOf(bench, other, "all", "6");
    }

    private static void transactionSchedules(Bench bench) {
        ServiceBusSenderClient sender = bench.publisher();
        OffsetDateTime tomorrow = OffsetDateTime.now().plusDays(1);
        ServiceBusTransactionContext rolledBack = sender.createTransaction();
        sender.scheduleMessage(keyed("never"), OffsetDateTime.now(), rolledBack);
        sender.rollbackTransaction(rolledBack);
        ServiceBusTransactionContext txn = sender.createTransaction();
        long number = sender.scheduleMessage(keyed("tomorrow"), tomorrow, txn);
        sender.sendMessage(keyed("now"), txn);
        sender.sendMessage(keyed("later").setScheduledEnqueueTime(OffsetDateTime.now().plusSeconds(1)), txn);
        sender.commitTransaction(txn);
        sender.cancelScheduledMessage(number);
        gets(bench, "all", "message later", "message now");
    }
}
