package interop;

import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;

/** What a scenario works with: a client, and a queue or topic of its own. */
final class Bench implements AutoCloseable {
    private final ServiceBusClientBuilder builder;
    private final Deque<AutoCloseable> opened = new ArrayDeque<>();
    private final String connectionString;
    final String queue;

    Bench(String connectionString, String queue) {
        this.connectionString = connectionString;
        this.queue = queue;
        // One attempt: a refusal is to be seen, not repeated.
        this.builder = new ServiceBusClientBuilder()
            .connectionString(connectionString)
            .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(Duration.ofSeconds(10)));
    }

    /** The same with a connection of its own. */
    Bench another() {
        return new Bench(connectionString, queue);
    }

    ServiceBusSenderClient sender() {
        return sender(queue);
    }

    ServiceBusSenderClient sender(String name) {
        return opened(builder.sender().queueName(name).buildClient());
    }

    ServiceBusReceiverClient receiver() {
        return receiver(queue);
    }

    ServiceBusReceiverClient receiver(String name) {
        return opened(builder.receiver().queueName(name).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    /** Sends to the scenario's topic. */
    ServiceBusSenderClient publisher() {
        return opened(builder.sender().topicName(queue).buildClient());
    }

    void publish(ServiceBusMessage... messages) {
        publisher().sendMessages(List.of(messages));
    }

    /** Receives from a subscription of the scenario's topic. */
    ServiceBusReceiverClient subscription(String name) {
        return subscription(queue, name);
    }

    ServiceBusReceiverClient subscription(String topic, String name) {
        return opened(
            builder.receiver().topicName(topic).subscriptionName(name).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    ServiceBusReceiverClient deletingSubscription(String topic, String name) {
        return opened(builder.receiver().topicName(topic).subscriptionName(name)
            .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient());
    }

    ServiceBusReceiverClient deadLettersOf(String subscription) {
        return opened(builder.receiver().topicName(queue).subscriptionName(subscription).subQueue(SubQueue.DEAD_LETTER_QUEUE)
            .maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    ServiceBusSessionReceiverClient sessionsOf(String subscription) {
        return opened(
            builder.sessionReceiver().topicName(queue).subscriptionName(subscription).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    /** Manages the rules of a subscription. */
    ServiceBusRuleManagerClient rules(String topic, String subscription) {
        return opened(builder.ruleManager().topicName(topic).subscriptionName(subscription).buildClient());
    }

    /** Clients whose transactions may cross entities: their links share one AMQP session. */
    Crossing crossing() {
        return new Crossing();
    }

    final class Crossing {
        private final ServiceBusClientBuilder builder = new ServiceBusClientBuilder()
            .connectionString(connectionString)
            .enableCrossEntityTransactions()
            .retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(Duration.ofSeconds(10)));

        ServiceBusSenderClient sender(String name) {
            return opened(builder.sender().queueName(name).buildClient());
        }

        ServiceBusReceiverClient receiver(String name) {
            return opened(builder.receiver().queueName(name).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
        }

        ServiceBusSenderClient publisher(String topic) {
            return opened(builder.sender().topicName(topic).buildClient());
        }

        ServiceBusReceiverClient subscription(String topic, String name) {
            return opened(
                builder.receiver().topicName(topic).subscriptionName(name).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
        }
    }

    ServiceBusSessionReceiverClient sessions() {
        return opened(builder.sessionReceiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    ServiceBusReceiverClient deletingReceiver() {
        return opened(builder.receiver().queueName(queue).receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient());
    }

    ServiceBusReceiverClient deadLetters() {
        return opened(
            builder.receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).maxAutoLockRenewDuration(Duration.ZERO).buildClient());
    }

    void send(ServiceBusMessage... messages) {
        ServiceBusSenderClient sender = sender();
        for (ServiceBusMessage message : messages) {
            sender.sendMessage(message);
        }
    }

    static List<ServiceBusReceivedMessage> exactly(ServiceBusReceiverClient receiver, int count) {
        List<ServiceBusReceivedMessage> found = new ArrayList<>();
        long deadline = System.nanoTime() + Duration.ofSeconds(10).toNanos();
        while (found.size() < count && System.nanoTime() < deadline) {
            receiver.receiveMessages(count - found.size(), Duration.ofSeconds(1)).forEach(found::add);
        }
        equal(found.size(), count, "messages");
        return found;
    }

    static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
        return exactly(receiver, 1).get(0);
    }

    static void empty(ServiceBusReceiverClient receiver) {
        equal(ids(receiver.receiveMessages(10, Duration.ofMillis(500)).stream().toList()), List.of(), "left over");
    }

    static ServiceBusMessage[] numbered(int count) {
        return IntStream.range(0, count).mapToObj(number -> message("message " + number, "id-" + number)).toArray(ServiceBusMessage[]::new);
    }

    static ServiceBusMessage message(String body, String id) {
        return new ServiceBusMessage(body).setMessageId(id);
    }

    static List<String> ids(List<ServiceBusReceivedMessage> messages) {
        return messages.stream().map(ServiceBusReceivedMessage::getMessageId).sorted().toList();
    }

    static List<String> idsUpTo(int count) {
        return IntStream.range(0, count).mapToObj(number -> "id-" + number).sorted().toList();
    }

    static void equal(Object seen, Object expected, String what) {
        if (!Objects.equals(seen, expected)) {
            throw new AssertionError(what + ": " + seen + ", expected " + expected);
        }
    }

    private <T extends AutoCloseable> T opened(T client) {
        opened.push(client);
        return client;
    }

    @Override
    public void close() {
        for (AutoCloseable client : opened) {
            try {
                client.close();
            } catch (Exception failed) {
                throw new AssertionError("closing: " + failed, failed);
            }
        }
    }
}
