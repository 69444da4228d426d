package interop;

import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.IntStream;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Runs the scenarios named in PARTIBUS_SCENARIOS with Qpid JMS and prints one JSON line for each: {"scenario", "ok", "detail"}. */
public final class Jms {
    private static final long WAIT_MS = 10_000;
    private static final long NOTHING_MS = 500;
    private static final Map<String, Scenario> SCENARIOS = new LinkedHashMap<>();

    @FunctionalInterface
    interface Scenario {
        void run(Session session, String name) throws Exception;
    }

    @FunctionalInterface
    private interface QueueScenario {
        void run(Session session, Queue queue) throws Exception;
    }

    private static void put(String name, QueueScenario scenario) {
        SCENARIOS.put(name, (session, queue) -> scenario.run(session, session.createQueue(queue)));
    }

    static {
        put("send-and-receive", Jms::sendAndReceive);
        put("client-acknowledge", Jms::clientAcknowledge);
        put("browse", Jms::browse);
        put("browse-pages", Jms::browsePages);
        put("browse-dead-letters", Jms::browseDeadLetters);
        put("browse-beside-a-consumer", Jms::browseBesideAConsumer);
        put("selector", Jms::selector);
        put("selector-receive", Jms::selectorReceive);
        put("selector-on-ids", Jms::selectorOnIds);
        put("selector-refused", Jms::selectorRefused);
        put("topic-refused", Jms::topicRefused);
        put("anonymous-refused", Jms::anonymousRefused);
        put("transacted-session", Jms::transactedSession);
        put("transacted-group", Jms::transactedGroup);
        SCENARIOS.putAll(JmsTopics.SCENARIOS);
    }

    public static void main(String[] arguments) {
        for (String name : System.getenv("PARTIBUS_SCENARIOS").split(",")) {
            String detail = "";
            try (Connection connection = connected("")) {
                Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
                SCENARIOS.get(name).run(session, System.getenv("PARTIBUS_QUEUE_PREFIX") + name);
            } catch (Exception | AssertionError failed) {
                StackTraceElement[] trace = failed.getStackTrace();
                detail = failed + " at " + List.of(trace).subList(0, Math.min(6, trace.length));
            }
            String printable = detail.replaceAll("[^ -~]|[\"\\\\]", " ");
            System.out.println("{\"scenario\":\"" + name + "\",\"ok\":" + detail.isEmpty() + ",\"detail\":\"" + printable + "\"}");
        }
        System.exit(0);
    }

    private static ConnectionFactory factory(String options) {
        String url = "amqp://" + System.getenv("PARTIBUS_HOST") + ":" + System.getenv("PARTIBUS_PORT");
        return new JmsConnectionFactory(url + "?jms.requestTimeout=" + WAIT_MS + "&jms.closeTimeout=" + WAIT_MS + options);
    }

    /** A connection with SASL PLAIN, started. */
    static Connection connected(String options) throws JMSException {
        Connection connection = factory(options).createConnection(System.getenv("PARTIBUS_KEY_NAME"), System.getenv("PARTIBUS_KEY"));
        connection.start();
        return connection;
    }

    private static void sendAndReceive(Session session, Queue queue) throws JMSException {
        send(session, queue, 4);
        MessageConsumer consumer = session.createConsumer(queue);
        List<String> found = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            TextMessage message = (TextMessage) consumer.receive(WAIT_MS);
            equal(message.getText(), "message " + message.getStringProperty("id"), "body");
            equal(message.getJMSRedelivered(), false, "redelivered");
            found.add(message.getStringProperty("id"));
        }
        equal(found.stream().sorted().toList(), idsUpTo(4), "received");
        equal(consumer.receive(NOTHING_MS), null, "left over");
        consumer.close();
        equal(ids(session, queue), List.of(), "acknowledged");
    }

    /** What was received and not acknowledged comes again, counted; what was acknowledged does not. */
    private static void clientAcknowledge(Session unused, Queue queue) throws JMSException {
        send(unused, queue, 1);
        try (Connection connection = connected("")) {
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createConsumer(queue);
            equal(consumer.receive(WAIT_MS).getIntProperty("JMSXDeliveryCount"), 1, "deliveries");
            session.recover();
            Message again = consumer.receive(WAIT_MS);
            equal(again.getIntProperty("JMSXDeliveryCount"), 2, "deliveries");
            again.acknowledge();
            equal(consumer.receive(NOTHING_MS), null, "left over");
        }
    }

    /** Four messages, browsed twice, are four messages. */
    private static void browse(Session session, Queue queue) throws JMSException {
        send(session, queue, 4);
        equal(browsed(session, queue), idsUpTo(4), "browsed");
        equal(browsed(session, queue), idsUpTo(4), "browsed again");
        equal(ids(session, queue), idsUpTo(4), "left for a consumer");
        equal(browsed(session, queue), List.of(), "browsed at the end");
    }

    /** Many times what the client prefetches. */
    private static void browsePages(Session session, Queue queue) throws JMSException {
        send(session, queue, 230);
        try (Connection connection = connected("&jms.prefetchPolicy.queueBrowserPrefetch=20")) {
            equal(browsed(connection.createSession(false, Session.AUTO_ACKNOWLEDGE), queue), idsUpTo(230), "browsed");
        }
        equal(ids(session, queue), idsUpTo(230), "left for a consumer");
    }

    private static void browseDeadLetters(Session session, Queue queue) throws JMSException {
        send(session, queue, 3);
        try (Connection connection = connected("&jms.redeliveryPolicy.maxRedeliveries=0&jms.redeliveryPolicy.outcome=REJECTED")) {
            Session rejecting = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = rejecting.createConsumer(queue);
            for (int number = 0; number < 3; number++) {
                consumer.receive(WAIT_MS);
            }
            rejecting.recover(); // each is then one redelivery too many, and the client rejects it
            equal(consumer.receive(NOTHING_MS), null, "rejected");
        }
        Queue letters = session.createQueue(queue.getQueueName() + "/$DeadLetterQueue");
        equal(browsed(session, letters), idsUpTo(3), "browsed");
        equal(ids(session, letters), idsUpTo(3), "left for a consumer");
    }

    /** A browser shows what a consumer has locked, and the consumer can still acknowledge it. */
    private static void browseBesideAConsumer(Session session, Queue queue) throws JMSException {
        send(session, queue, 2);
        try (Connection connection = connected("")) {
            Session other = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = other.createConsumer(queue);
            consumer.receive(WAIT_MS);
            Message last = consumer.receive(WAIT_MS);
            equal(browsed(session, queue), idsUpTo(2), "browsed");
            last.acknowledge();
        }
        equal(browsed(session, queue), List.of(), "browsed after the acknowledgement");
    }

    /** A browser sees what matches, and a consumer takes it and leaves the rest. */
    private static void selector(Session session, Queue queue) throws JMSException {
        send(session, queue, 6);
        String wanted = "id IN ('id-1', 'id-3') OR id LIKE 'id!_4' ESCAPE '!' AND JMSMessageID IS NOT NULL";
        List<String> found = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(queue, wanted)) {
            Enumeration<?> messages = browser.getEnumeration();
            while (messages.hasMoreElements()) {
                found.add(((Message) messages.nextElement()).getStringProperty("id"));
            }
        }
        equal(found.stream().sorted().toList(), List.of("id-1", "id-3"), "browsed");
        try (MessageConsumer consumer = session.createConsumer(queue, wanted)) {
            found.clear();
            for (Message message = consumer.receive(NOTHING_MS); message != null; message = consumer.receive(NOTHING_MS)) {
                found.add(message.getStringProperty("id"));
            }
        }
        equal(found.stream().sorted().toList(), List.of("id-1", "id-3"), "consumed");
        equal(ids(session, queue), List.of("id-0", "id-2", "id-4", "id-5"), "left for others");
    }

    /** One consumer for each half, and messages that come while both wait. */
    private static void selectorReceive(Session session, Queue queue) throws JMSException {
        try (MessageConsumer even = session.createConsumer(queue, "id IN ('id-0', 'id-2')");
                MessageConsumer odd = session.createConsumer(queue, "id NOT IN ('id-0', 'id-2')")) {
            send(session, queue, 4);
            List<String> found = new ArrayList<>();
            for (int number = 0; number < 2; number++) {
                found.add(even.receive(WAIT_MS).getStringProperty("id"));
            }
            equal(found.stream().sorted().toList(), List.of("id-0", "id-2"), "of the first half");
            for (int number = 0; number < 2; number++) {
                found.add(odd.receive(WAIT_MS).getStringProperty("id"));
            }
            equal(found.subList(2, 4).stream().sorted().toList(), List.of("id-1", "id-3"), "of the second half");
            equal(even.receive(NOTHING_MS), null, "nothing more");
        }
    }

    /** Each message is found by the ids that the client shows of it, whatever their types are in AMQP. */
    private static void selectorOnIds(Session session, Queue queue) throws JMSException {
        for (String type : List.of("UUID", "UUID_STRING", "PREFIXED_UUID_STRING")) {
            try (Connection connection = connected("&jms.messageIDPolicy.messageIDType=" + type)) {
                sendOne(connection.createSession(false, Session.AUTO_ACKNOWLEDGE), queue, type, null);
            }
        }
        try (MessageProducer producer = session.createProducer(queue)) {
            for (String id : List.of("ID:AMQP_ULONG:7", "ID:AMQP_BINARY:0A5A", "ID:given", "given")) {
                TextMessage message = session.createTextMessage("with a correlation-id");
                message.setJMSCorrelationID(id);
                producer.send(message);
            }
        }
        List<Message> sent = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(queue)) {
            Enumeration<?> messages = browser.getEnumeration();
            while (messages.hasMoreElements()) {
                sent.add((Message) messages.nextElement());
            }
        }
        equal(sent.size(), 7, "messages");
        for (Message message : sent) {
            String wanted = "JMSMessageID = '" + message.getJMSMessageID() + "'";
            if (message.getJMSCorrelationID() != null) {
                wanted += " AND JMSCorrelationID = '" + message.getJMSCorrelationID() + "'";
            }
            try (MessageConsumer consumer = session.createConsumer(queue, wanted)) {
                Message found = consumer.receive(WAIT_MS);
                equal(found == null ? null : found.getJMSMessageID(), message.getJMSMessageID(), wanted);
            }
        }
    }

    private static void selectorRefused(Session session, Queue queue) throws JMSException {
        send(session, queue, 4);
        String wrong = "id = 'x' OR JMSDestination = 'y'"; // the client finds nothing wrong with it
        String text = refusal(() -> session.createConsumer(queue, wrong))
            + refusal(() -> session.createBrowser(queue, wrong).getEnumeration());
        equal(text.split("not valid at position 13", -1).length - 1, 2, "the position is named in " + text);
        equal(ids(session, queue), idsUpTo(4), "left for a consumer");
    }

    private static void topicRefused(Session session, Queue queue) throws JMSException {
        send(session, queue, 1);
        String text = refusal(() -> session.createConsumer(session.createTopic(queue.getQueueName())));
        equal(text.contains("'topic'"), true, "the capability is named in " + text);
        equal(ids(session, queue), idsUpTo(1), "left for a consumer");
    }

    /** JMS has no way to put a token to $cbs: without a user it has no rights, and it is told what to do. */
    private static void anonymousRefused(Session session, Queue queue) throws JMSException {
        send(session, queue, 1);
        String text;
        try (Connection connection = factory("").createConnection()) {
            connection.start();
            Session anonymous = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            text = refusal(() -> anonymous.createConsumer(queue)) + refusal(() -> anonymous.createProducer(queue))
                + refusal(() -> anonymous.createBrowser(queue).getEnumeration());
        }
        equal(text.split("amqp:unauthorized-access", -1).length - 1, 3, "refused: " + text);
        equal(ids(session, queue), idsUpTo(1), "left for a consumer");
    }

    /** What a transacted session receives and sends takes effect with its commit, and a roll-back changes nothing. */
    private static void transactedSession(Session unused, Queue queue) throws JMSException {
        send(unused, queue, 4);
        try (Connection connection = connected("&jms.prefetchPolicy.all=0")) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createConsumer(queue);
            consumer.receive(WAIT_MS);
            consumer.receive(WAIT_MS);
            sendOne(session, queue, "new", null);
            equal(browsed(unused, queue), idsUpTo(4), "before the commit");
            session.commit();
            equal(browsed(unused, queue), List.of("id-2", "id-3", "new"), "after the commit");
            consumer.receive(WAIT_MS);
            sendOne(session, queue, "never", null);
            session.rollback();
            equal(browsed(unused, queue), List.of("id-2", "id-3", "new"), "after the roll-back");
            sendOne(session, queue, "next", null);
            session.commit();
            equal(browsed(unused, queue), List.of("id-2", "id-3", "new", "next"), "in the next transaction");
        }
    }

    /** In a partitioned queue, the messages of a transaction are of one group. */
    private static void transactedGroup(Session unused, Queue queue) throws JMSException {
        Session session = connected("").createSession(true, Session.SESSION_TRANSACTED);
        sendOne(session, queue, "one", "group");
        sendOne(session, queue, "two", "group");
        session.commit();
        equal(browsed(unused, queue), List.of("one", "two"), "committed");
        sendOne(session, queue, "three", "group");
        sendOne(session, queue, "four", null); // the client looks at the outcomes of its sends in the commit
        String text = refusal(session::commit);
        equal(text.contains("without a key"), true, "the reason is named in " + text);
        equal(browsed(unused, queue), List.of("one", "two"), "rolled back");
        session.close();
    }

    private static void sendOne(Session session, Queue queue, String id, String group) throws JMSException {
        try (MessageProducer producer = session.createProducer(queue)) {
            TextMessage message = session.createTextMessage("message " + id);
            message.setStringProperty("id", id);
            if (group != null) {
                message.setStringProperty("JMSXGroupID", group);
            }
            producer.send(message);
        }
    }

    @FunctionalInterface
    interface Refused {
        void attempt() throws JMSException;
    }

    static String refusal(Refused refused) {
        try {
            refused.attempt();
        } catch (JMSException error) {
            return error.toString();
        }
        throw new AssertionError("it was not refused");
    }

    private static void send(Session session, Queue queue, int count) throws JMSException {
        try (MessageProducer producer = session.createProducer(queue)) {
            for (int number = 0; number < count; number++) {
                TextMessage message = session.createTextMessage("message id-" + number);
                message.setStringProperty("id", "id-" + number);
                producer.send(message);
            }
        }
    }

    private static List<String> browsed(Session session, Queue queue) throws JMSException {
        List<String> found = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(queue)) {
            Enumeration<?> messages = browser.getEnumeration();
            while (messages.hasMoreElements()) {
                found.add(((Message) messages.nextElement()).getStringProperty("id"));
            }
        }
        return found.stream().sorted().toList();
    }

    /** What a consumer takes out of the queue until there is nothing more. */
    private static List<String> ids(Session session, Queue queue) throws JMSException {
        List<String> found = new ArrayList<>();
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            for (Message message = consumer.receive(NOTHING_MS); message != null; message = consumer.receive(NOTHING_MS)) {
                found.add(message.getStringProperty("id"));
            }
        }
        return found.stream().sorted().toList();
    }

    private static List<String> idsUpTo(int count) {
        return IntStream.range(0, count).mapToObj(number -> "id-" + number).sorted().toList();
    }

    static void equal(Object seen, Object expected, String what) {
        if (!Objects.equals(seen, expected)) {
            throw new AssertionError(what + ": " + seen + ", expected " + expected);
        }
    }
}
