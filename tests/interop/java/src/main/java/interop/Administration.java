package interop;

import static interop.Bench.equal;

import com.azure.core.exception.ClientAuthenticationException;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.AccessRights;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SharedAccessAuthorizationRule;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.administration.models.TopicProperties;
import java.net.MalformedURLException;
import java.net.URL;
import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * Scenarios with the administration client, by name.
 *
 * It always uses port 443. A policy, which the builder takes for such purposes, puts the broker's port into each request.
 */
public final class Administration {
    private static final Map<String, Scenario> ALL = Map.of(
        "queues", Administration::queues,
        "every-property", Administration::everyProperty,
        "topics-and-subscriptions", Administration::topicsAndSubscriptions,
        "rules", Administration::rules,
        "errors", Administration::errors,
        "namespace", bench -> equal(client("PARTIBUS_CONNECTION_STRING").getNamespaceProperties().getName(), "sbemulatorns", "name"));

    public static void main(String[] arguments) {
        Main.runAll(ALL);
    }

    private static ServiceBusAdministrationClient client(String connectionString) {
        int port = Integer.parseInt(System.getenv("PARTIBUS_HTTP_PORT"));
        HttpPipelinePolicy toPort = (context, next) -> {
            URL url = context.getHttpRequest().getUrl();
            try {
                context.getHttpRequest().setUrl(new URL(url.getProtocol(), url.getHost(), port, url.getFile()));
            } catch (MalformedURLException error) {
                throw new IllegalStateException(error);
            }
            return next.process();
        };
        return new ServiceBusAdministrationClientBuilder().connectionString(System.getenv(connectionString)).addPolicy(toPort).buildClient();
    }

    private static ServiceBusAdministrationClient client() {
        return client("PARTIBUS_CONNECTION_STRING");
    }

    private static void queues(Bench bench) {
        ServiceBusAdministrationClient client = client();
        equal(client.getQueueExists("java-queue"), false, "exists");
        client.createQueue("java-queue");
        equal(client.getQueueExists("java-queue"), true, "exists");
        QueueProperties found = client.getQueue("java-queue");
        equal(found.isPartitioningEnabled(), false, "partitioned, which this client always says");
        found.setMaxDeliveryCount(7).setUserMetadata("changed");
        QueueProperties changed = client.updateQueue(found);
        equal(List.of(changed.getMaxDeliveryCount(), changed.getUserMetadata()), List.of(7, "changed"), "update");
        equal(client.getQueueRuntimeProperties("java-queue").getTotalMessageCount(), 0L, "messages");
        equal(client.listQueues().stream().filter(each -> each.getName().equals("java-queue")).count(), 1L, "listed");
        client.deleteQueue("java-queue");
        equal(client.getQueueExists("java-queue"), false, "exists");
    }

    private static void everyProperty(Bench bench) {
        ServiceBusAdministrationClient client = client();
        client.createQueue("java-target");
        CreateQueueOptions options = new CreateQueueOptions()
            .setAutoDeleteOnIdle(Duration.ofMinutes(10))
            .setDefaultMessageTimeToLive(Duration.ofDays(2))
            .setDeadLetteringOnMessageExpiration(true)
            .setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(3))
            .setBatchedOperationsEnabled(false)
            .setPartitioningEnabled(false)
            .setForwardDeadLetteredMessagesTo("java-target")
            .setLockDuration(Duration.ofSeconds(30))
            .setMaxDeliveryCount(5)
            .setMaxSizeInMegabytes(2048)
            .setSessionRequired(true)
            .setStatus(EntityStatus.SEND_DISABLED)
            .setUserMetadata("metadata");
        options.getAuthorizationRules().add(
            new SharedAccessAuthorizationRule("rule", "cHJpbWFyeQ==", "c2Vjb25kYXJ5", List.of(AccessRights.SEND)));
        client.createQueue("java-properties", options);
        QueueProperties found = client.getQueue("java-properties");
        equal(found.getAutoDeleteOnIdle(), Duration.ofMinutes(10), "idle");
        equal(found.getDefaultMessageTimeToLive(), Duration.ofDays(2), "time to live");
        equal(found.isDeadLetteringOnMessageExpiration(), true, "dead-lettering");
        equal(found.isDuplicateDetectionRequired(), true, "duplicates");
        equal(found.getDuplicateDetectionHistoryTimeWindow(), Duration.ofMinutes(3), "window");
        equal(found.isBatchedOperationsEnabled(), false, "batched");
        equal(found.isPartitioningEnabled(), false, "partitioned");
        equal(found.getForwardDeadLetteredMessagesTo().endsWith("/java-target"), true, "forwarding");
        equal(found.getLockDuration(), Duration.ofSeconds(30), "lock");
        equal(found.getMaxDeliveryCount(), 5, "deliveries");
        equal(found.getMaxSizeInMegabytes(), 2048L, "size");
        equal(found.isSessionRequired(), true, "sessions");
        equal(found.getStatus(), EntityStatus.SEND_DISABLED, "status");
        equal(found.getUserMetadata(), "metadata", "metadata");
        equal(found.getAuthorizationRules().get(0).getPrimaryKey(), "cHJpbWFyeQ==", "key");
        found.setStatus(EntityStatus.ACTIVE);
        equal(client.updateQueue(found).getStatus(), EntityStatus.ACTIVE, "status");
        client.deleteQueue("java-properties");
        client.deleteQueue("java-target");
    }

    private static void topicsAndSubscriptions(Bench bench) {
        ServiceBusAdministrationClient client = client();
        client.createTopic("java-topic", new CreateTopicOptions().setUserMetadata("before"));
        equal(client.getTopicExists("java-topic"), true, "exists");
        TopicProperties topic = client.updateTopic(client.getTopic("java-topic").setUserMetadata("after"));
        equal(topic.getUserMetadata(), "after", "metadata");
        CreateSubscriptionOptions options = new CreateSubscriptionOptions().setLockDuration(Duration.ofSeconds(20)).setMaxDeliveryCount(4);
        client.createSubscription("java-topic", "one", options);
        client.createSubscription("java-topic", "two");
        equal(client.getSubscriptionExists("java-topic", "one"), true, "exists");
        SubscriptionProperties one = client.getSubscription("java-topic", "one");
        equal(List.of(one.getLockDuration(), one.getMaxDeliveryCount()), List.of(Duration.ofSeconds(20), 4), "subscription");
        equal(client.updateSubscription(one.setMaxDeliveryCount(6)).getMaxDeliveryCount(), 6, "update");
        equal(client.listSubscriptions("java-topic").stream().count(), 2L, "subscriptions");
        equal(client.listTopics().stream().filter(each -> each.getName().equals("java-topic")).count(), 1L, "listed");
        equal(client.getTopicRuntimeProperties("java-topic").getSubscriptionCount(), 2, "subscription count");
        equal(client.getSubscriptionRuntimeProperties("java-topic", "one").getTotalMessageCount(), 0L, "messages");
        client.deleteSubscription("java-topic", "two");
        equal(client.getSubscriptionExists("java-topic", "two"), false, "exists");
        client.deleteTopic("java-topic");
        equal(client.getTopicExists("java-topic"), false, "exists");
    }

    private static void rules(Bench bench) {
        ServiceBusAdministrationClient client = client();
        client.createTopic("java-rules");
        client.createSubscription("java-rules", "one");
        CreateRuleOptions options = new CreateRuleOptions(new SqlRuleFilter("color = 'red'")).setAction(new SqlRuleAction("SET size = 7"));
        client.createRule("java-rules", "sql", "one", options);
        client.createRule("java-rules", "correlation", "one", new CreateRuleOptions(new CorrelationRuleFilter().setLabel("red")));
        RuleProperties sql = client.getRule("java-rules", "one", "sql");
        equal(((SqlRuleFilter) sql.getFilter()).getSqlExpression(), "color = 'red'", "filter");
        equal(((SqlRuleAction) sql.getAction()).getSqlExpression(), "SET size = 7", "action");
        client.updateRule("java-rules", "one", sql.setFilter(new SqlRuleFilter("color = 'blue'")));
        RuleProperties changed = client.getRule("java-rules", "one", "sql");
        equal(((SqlRuleFilter) changed.getFilter()).getSqlExpression(), "color = 'blue'", "update");
        equal(((CorrelationRuleFilter) client.getRule("java-rules", "one", "correlation").getFilter()).getLabel(), "red", "label");
        client.deleteRule("java-rules", "one", "$Default");
        equal(client.listRules("java-rules", "one").stream().map(RuleProperties::getName).sorted().toList(), List.of("correlation", "sql"), "rules");
        client.deleteTopic("java-rules");
    }

    private static void errors(Bench bench) {
        ServiceBusAdministrationClient client = client();
        client.createQueue("java-errors");
        refused(ResourceExistsException.class, () -> client.createQueue("java-errors"), 409);
        refused(ResourceNotFoundException.class, () -> client.getQueue("java-missing"), 200); // an empty feed
        refused(ResourceNotFoundException.class, () -> client.deleteQueue("java-missing"), 404);
        refused(ResourceNotFoundException.class, () -> client.getSubscription("java-missing", "one"), 404);
        refused(HttpResponseException.class, () -> client.createQueue("java-long", new CreateQueueOptions().setLockDuration(Duration.ofMinutes(9))), 400);
        refused(ClientAuthenticationException.class, () -> client("PARTIBUS_CONNECTION_STRING_WRONG_KEY").getQueue("java-errors"), 401);
        client.deleteQueue("java-errors");
    }

    private static void refused(Class<? extends HttpResponseException> expected, Runnable action, int status) {
        try {
            action.run();
        } catch (HttpResponseException error) {
            equal(error.getClass(), expected, "the error " + error);
            if (error.getResponse() != null) {
                equal(error.getResponse().getStatusCode(), status, "status");
            }
            return;
        }
        throw new AssertionError("no error, but " + status + " was expected");
    }
}
