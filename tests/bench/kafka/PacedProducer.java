import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends small batches at a steady pace. Arguments: address, topic, batches, messages in each, ms between them, bytes, keys. */
public class PacedProducer {
    public static void main(String[] given) throws Exception {
        int batches = Integer.parseInt(given[2]), size = Integer.parseInt(given[3]), everyMs = Integer.parseInt(given[4]);
        int keys = Integer.parseInt(given[6]);
        byte[] body = new byte[Integer.parseInt(given[5])];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[0]);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer())) {
            long began = System.nanoTime();
            for (int number = 0; number < batches; number++) {
                for (int each = number * size; each < (number + 1) * size; each++) {
                    var id = new RecordHeader("id", ("paced-" + each).getBytes());
                    producer.send(new ProducerRecord<>(given[1], null, "key-" + number % keys, body, List.of(id)));
                }
                producer.flush();
                Thread.sleep(Math.max(0, (began - System.nanoTime()) / 1_000_000 + (number + 1) * everyMs));
            }
        }
    }
}
