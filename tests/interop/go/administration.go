package main

import (
	"os"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func pointer[T any](value T) *T { return &value }

// topicAdministration creates, changes, lists and deletes a topic, its subscriptions and rules. SSL_CERT_FILE names the broker's authority.
func topicAdministration(b *bench) {
	client := must(admin.NewClientFromConnectionString(os.Getenv("PARTIBUS_ADMIN_CONNECTION_STRING"), nil))
	topic := b.queue
	created := must(client.CreateTopic(b.ctx, topic, &admin.CreateTopicOptions{Properties: &admin.TopicProperties{UserMetadata: pointer("before")}}))
	equal(*created.UserMetadata, "before", "metadata")
	created.UserMetadata = pointer("after")
	must(client.UpdateTopic(b.ctx, topic, created.TopicProperties, nil))
	equal(*must(client.GetTopic(b.ctx, topic, nil)).UserMetadata, "after", "metadata")

	for _, name := range []string{"one", "two"} {
		must(client.CreateSubscription(b.ctx, topic, name, &admin.CreateSubscriptionOptions{
			Properties: &admin.SubscriptionProperties{MaxDeliveryCount: pointer(int32(4))},
		}))
	}
	var names []string
	for pager := client.NewListSubscriptionsPager(topic, &admin.ListSubscriptionsOptions{MaxPageSize: 1}); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).Subscriptions {
			names = append(names, each.SubscriptionName)
			equal(*each.MaxDeliveryCount, 4, "deliveries")
		}
	}
	equal(len(names), 2, "subscriptions")
	equal(must(client.GetTopicRuntimeProperties(b.ctx, topic, nil)).SubscriptionCount, 2, "subscription count")

	must(client.CreateRule(b.ctx, topic, "one", &admin.CreateRuleOptions{
		Name:   pointer("sql"),
		Filter: &admin.SQLFilter{Expression: "color = @color", Parameters: map[string]any{"@color": "red"}},
		Action: &admin.SQLAction{Expression: "SET size = 7"},
	}))
	must(client.CreateRule(b.ctx, topic, "one", &admin.CreateRuleOptions{
		Name:   pointer("correlation"),
		Filter: &admin.CorrelationFilter{Subject: pointer("red"), ApplicationProperties: map[string]any{"size": 7.5, "flag": true}},
	}))
	must(client.DeleteRule(b.ctx, topic, "one", "$Default", nil))
	var rules []admin.RuleProperties
	for pager := client.NewListRulesPager(topic, "one", nil); pager.More(); {
		rules = append(rules, must(pager.NextPage(b.ctx)).Rules...)
	}
	equal(len(rules), 2, "rules")
	equal(rules[0].Filter.(*admin.SQLFilter).Expression, "color = @color", "expression")
	equal(rules[0].Filter.(*admin.SQLFilter).Parameters["@color"].(string), "red", "parameter")
	equal(rules[0].Action.(*admin.SQLAction).Expression, "SET size = 7", "action")
	equal(*rules[1].Filter.(*admin.CorrelationFilter).Subject, "red", "subject")
	equal(rules[1].Filter.(*admin.CorrelationFilter).ApplicationProperties["size"].(float64), 7.5, "size")

	sender := must(b.client.NewSender(topic, nil))
	check(sender.SendMessage(b.ctx, &azservicebus.Message{Body: []byte("m"), ApplicationProperties: map[string]any{"color": "red"}}, nil))
	for _, name := range []string{"one", "two"} {
		receiver := must(b.client.NewReceiverForSubscription(topic, name, &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}))
		equal(string(b.exactly(receiver, 1)[0].Body), "m", name)
	}

	must(client.DeleteSubscription(b.ctx, topic, "two", nil))
	if found := must(client.GetSubscription(b.ctx, topic, "two", nil)); found != nil {
		fail("%v, expected no subscription", found)
	}
	must(client.DeleteTopic(b.ctx, topic, nil))
	if found := must(client.GetTopic(b.ctx, topic, nil)); found != nil {
		fail("%v, expected no topic", found)
	}
}
