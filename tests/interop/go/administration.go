package main

import (
	"errors"
	"os"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
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

// queueAdministration creates, changes, lists and deletes a queue with every property, and meets the errors.
func queueAdministration(b *bench) {
	client := must(admin.NewClientFromConnectionString(os.Getenv("PARTIBUS_ADMIN_CONNECTION_STRING"), nil))
	queue := b.queue
	wanted := admin.QueueProperties{
		AutoDeleteOnIdle:                    pointer("PT10M"),
		DeadLetteringOnMessageExpiration:    pointer(true),
		DefaultMessageTimeToLive:            pointer("P2D"),
		DuplicateDetectionHistoryTimeWindow: pointer("PT3M"),
		EnableBatchedOperations:             pointer(false),
		EnablePartitioning:                  pointer(false),
		LockDuration:                        pointer("PT30S"),
		MaxDeliveryCount:                    pointer(int32(5)),
		MaxSizeInMegabytes:                  pointer(int32(2048)),
		RequiresDuplicateDetection:          pointer(true),
		RequiresSession:                     pointer(true),
		Status:                              pointer(admin.EntityStatusSendDisabled),
		UserMetadata:                        pointer("before"),
	}
	must(client.CreateQueue(b.ctx, queue, &admin.CreateQueueOptions{Properties: &wanted}))
	found := must(client.GetQueue(b.ctx, queue, nil)).QueueProperties
	equal(*found.AutoDeleteOnIdle, "PT10M", "idle")
	equal(*found.DeadLetteringOnMessageExpiration, true, "dead-lettering")
	equal(*found.DefaultMessageTimeToLive, "P2D", "time to live")
	equal(*found.DuplicateDetectionHistoryTimeWindow, "PT3M", "window")
	equal(*found.EnableBatchedOperations, false, "batched")
	equal(*found.EnablePartitioning, false, "partitioned")
	equal(*found.LockDuration, "PT30S", "lock")
	equal(*found.MaxDeliveryCount, 5, "deliveries")
	equal(*found.MaxSizeInMegabytes, 2048, "size")
	equal(*found.RequiresDuplicateDetection, true, "duplicates")
	equal(*found.RequiresSession, true, "sessions")
	equal(*found.Status, admin.EntityStatusSendDisabled, "status")
	found.UserMetadata = pointer("after")
	equal(*must(client.UpdateQueue(b.ctx, queue, found, nil)).UserMetadata, "after", "metadata")
	equal(must(client.GetQueueRuntimeProperties(b.ctx, queue, nil)).TotalMessageCount, 0, "messages")
	listed := 0
	for pager := client.NewListQueuesPager(nil); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).Queues {
			if each.QueueName == queue {
				listed++
			}
		}
	}
	equal(listed, 1, "listed")
	equal(must(client.GetNamespaceProperties(b.ctx, nil)).Name, "sbemulatorns", "namespace")

	var refused *azcore.ResponseError
	if _, err := client.CreateQueue(b.ctx, queue, nil); !errors.As(err, &refused) || refused.StatusCode != 409 {
		fail("%v, expected a conflict", err)
	}
	tooLong := &admin.CreateQueueOptions{Properties: &admin.QueueProperties{LockDuration: pointer("PT9M")}}
	if _, err := client.CreateQueue(b.ctx, queue+"-long", tooLong); !errors.As(err, &refused) || refused.StatusCode != 400 {
		fail("%v, expected a bad request", err)
	}
	must(client.DeleteQueue(b.ctx, queue, nil))
	if found := must(client.GetQueue(b.ctx, queue, nil)); found != nil {
		fail("%v, expected no queue", found)
	}
	if _, err := client.DeleteQueue(b.ctx, queue, nil); !errors.As(err, &refused) || refused.StatusCode != 404 {
		fail("%v, expected that there is no queue", err)
	}
}
