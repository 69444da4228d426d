import java.util.ArrayList;
import java.util.Map;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;

/** Creates topics, and waits until every partition has a leader. Arguments: address, partitions, topics. */
public class CreateTopics {
    public static void main(String[] given) throws Exception {
        var topics = new ArrayList<NewTopic>();
        for (int place = 2; place < given.length; place++) {
            topics.add(new NewTopic(given[place], Integer.parseInt(given[1]), (short) 1));
        }
        try (var admin = Admin.create(Map.of("bootstrap.servers", given[0]))) {
            admin.createTopics(topics).all().get();
            var names = topics.stream().map(NewTopic::name).toList();
            while (admin.describeTopics(names).allTopicNames().get().values().stream()
                    .anyMatch(topic -> topic.partitions().stream().anyMatch(each -> each.leader() == null))) {
                Thread.sleep(50);
            }
        }
    }
}
