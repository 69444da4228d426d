package interop;

import static interop.Jms.connected;
import static interop.Jms.equal;
import static interop.Jms.refusal;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Topics with Qpid JMS. Each scenario has a topic of its own, whose subscriptions are "plain", "plain-too", and those that the service names
 * after clients: "mine$client-1$D" and "mine$client-2$D", and "ours$$D".
 */
final class JmsTopics {
    private static final long WAIT_MS = 10_000;
    private static final long NOTHING_MS = 500;
    static final Map<String, Jms.Scenario> SCENARIOS = Map.of(
        "topic-subscription", JmsTopics::subscription,
        "topic-durable", JmsTopics::durable,
        "topic-durable-of-a-client", JmsTopics::durableOfAClient,
        "topic-shared", JmsTopics::shared,
        "topic-transacted", JmsTopics::transacted,
        "topic-refusals", JmsTopics::refusals);

    private static Topic topic(Session session, String name) throws JMSException {
        return session.createTopic(name);
    }

    private static void publish(Session session, String topic, String... bodies) throws JMSException {
        try (MessageProducer producer = session.createProducer(topic(session, topic))) {
            for (String body : bodies) {
                TextMessage message = session.createTextMessage(body);
                message.setStringProperty("JMSXGroupID", "one"); // one partition, so in order
                message.setStringProperty("color", body);
                producer.send(message);
            }
        }
    }

    private static void gets(MessageConsumer consumer, String... bodies) throws JMSException {
        List<String> found = new ArrayList<>();
        for (int number = 0; number < bodies.length; number++) {
            Message message = consumer.receive(WAIT_MS);
            found.add(message == null ? "nothing" : message.getBody(String.class));
        }
        equal(found, List.of(bodies), "received");
        equal(consumer.receive(NOTHING_MS), null, "nothing more");
    }

    private static Connection withClientId(String id) throws JMSException {
        return connected("&jms.clientID=" + id);
    }

    private static Session session(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    /** A subscription by its address, as a queue and as a topic. */
    private static void subscription(Session session, String name) throws JMSException {
        publish(session, name, "a", "b");
        try (MessageConsumer consumer = session.createConsumer(session.createQueue(name + "/Subscriptions/plain"))) {
            gets(consumer, "a", "b");
        }
        try (MessageConsumer consumer = session.createConsumer(topic(session, name + "/Subscriptions/plain-too"), "color = 'b'")) {
            gets(consumer, "b");
        }
        try (MessageConsumer consumer = session.createConsumer(topic(session, name + "/Subscriptions/plain-too"))) {
            gets(consumer, "a");
        }
    }

    /** Without a subscription for its client id, a subscriber has the one of its name. It gets what was sent while it was away. */
    private static void durable(Session publisher, String name) throws JMSException {
        publish(publisher, name, "before");
        try (Connection connection = withClientId("somebody")) {
            Session session = session(connection);
            MessageConsumer consumer = session.createDurableSubscriber(topic(session, name), "plain");
            gets(consumer, "before");
            consumer.close();
            publish(publisher, name, "meanwhile");
            gets(session.createDurableConsumer(topic(session, name), "plain"), "meanwhile");
            MessageConsumer named = session.createDurableConsumer(topic(session, name + "/Subscriptions/plain-too"), "any");
            gets(named, "before", "meanwhile");
        }
        publish(publisher, name, "afterwards");
        try (Connection connection = withClientId("somebody")) {
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = session.createDurableConsumer(topic(session, name), "plain");
            equal(consumer.receive(WAIT_MS).getIntProperty("JMSXDeliveryCount"), 1, "deliveries");
            session.recover();
            Message again = consumer.receive(WAIT_MS);
            equal(again.getIntProperty("JMSXDeliveryCount"), 2, "deliveries");
            again.acknowledge();
            equal(consumer.receive(NOTHING_MS), null, "acknowledged");
        }
    }

    private static void durableOfAClient(Session publisher, String name) throws JMSException {
        publish(publisher, name, "a");
        for (String client : List.of("client-1", "client-2")) {
            try (Connection connection = withClientId(client)) {
                Session session = session(connection);
                gets(session.createDurableConsumer(topic(session, name), "mine"), "a");
            }
        }
        try (Connection connection = withClientId("client-3")) {
            Session session = session(connection);
            String text = refusal(() -> session.createDurableConsumer(topic(session, name), "mine"));
            equal(text.contains("mine$client-3$D") && text.contains("could not be found"), true, text);
        }
    }

    /** Several consumers, of one connection and of another one, have the messages of a subscription between them. */
    private static void shared(Session first, String name) throws JMSException {
        try (Connection connection = connected("")) {
            Session second = session(connection);
            List<MessageConsumer> consumers = List.of(
                first.createSharedDurableConsumer(topic(first, name), "ours"),
                first.createSharedDurableConsumer(topic(first, name), "ours"),
                second.createSharedDurableConsumer(topic(second, name), "ours"));
            publish(second, name, "a", "b", "c", "d");
            List<String> found = new ArrayList<>();
            long deadline = System.nanoTime() + WAIT_MS * 1_000_000;
            while (found.size() < 4 && System.nanoTime() < deadline) {
                for (MessageConsumer consumer : consumers) {
                    Message message = consumer.receive(20);
                    if (message != null) {
                        found.add(message.getBody(String.class));
                    }
                }
            }
            equal(found.stream().sorted().toList(), List.of("a", "b", "c", "d"), "each message once");
        }
        try (Connection connection = withClientId("client-1")) {
            Session session = session(connection);
            gets(session.createSharedDurableConsumer(topic(session, name), "mine"), "a", "b", "c", "d");
        }
    }

    /** A transacted session takes from a subscription and sends to the topic at once. */
    private static void transacted(Session publisher, String name) throws JMSException {
        publish(publisher, name, "a");
        try (Connection connection = connected("&jms.clientID=somebody&jms.prefetchPolicy.all=0")) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            MessageConsumer consumer = session.createDurableConsumer(topic(session, name), "plain");
            equal(consumer.receive(WAIT_MS).getBody(String.class), "a", "received");
            publish(session, name, "b");
            session.commit();
            equal(consumer.receive(WAIT_MS).getBody(String.class), "b", "sent with the commit");
            publish(session, name, "never");
            session.rollback();
        }
        try (MessageConsumer consumer = publisher.createConsumer(publisher.createQueue(name + "/Subscriptions/plain-too"))) {
            gets(consumer, "a", "b");
        }
    }

    /** What comes and goes with its consumer is refused, and so is what only the administration may do. */
    private static void refusals(Session session, String name) throws JMSException {
        String without = refusal(() -> session.createConsumer(topic(session, name)));
        equal(without.contains("subscriptions"), true, without);
        String shared = refusal(() -> session.createSharedConsumer(topic(session, name), "plain"));
        equal(shared.contains("'shared'"), true, shared);
        try (Connection connection = withClientId("somebody")) {
            Session other = session(connection);
            String missing = refusal(() -> other.createDurableConsumer(topic(other, name), "missing"));
            equal(missing.contains("could not be found"), true, missing);
            String unsubscribed = refusal(() -> other.unsubscribe("plain"));
            equal(unsubscribed.contains("delete the subscription"), true, unsubscribed);
            MessageConsumer consumer = other.createDurableConsumer(topic(other, name), "plain");
            publish(session, name, "a");
            gets(consumer, "a");
        }
    }
}
