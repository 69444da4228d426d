package main

import (
	"fmt"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

// topicAdministration creates, changes, lists and deletes a topic with every property, and meets the errors.
func topicAdministration(b *bench) {
	client, topic := administration(), b.queue
	wanted := admin.TopicProperties{
		AuthorizationRules:                  manager,
		AutoDeleteOnIdle:                    to("PT10M"),
		DefaultMessageTimeToLive:            to("P2D"),
		DuplicateDetectionHistoryTimeWindow: to("PT3M"),
		EnableBatchedOperations:             to(false),
		EnablePartitioning:                  to(false),
		MaxMessageSizeInKilobytes:           to(int64(2048)),
		MaxSizeInMegabytes:                  to(int32(2048)),
		RequiresDuplicateDetection:          to(true),
		Status:                              to(admin.EntityStatusDisabled),
		SupportOrdering:                     to(true),
		UserMetadata:                        to("before"),
	}
	must(client.CreateTopic(b.ctx, topic, &admin.CreateTopicOptions{Properties: &wanted}))
	found := must(client.GetTopic(b.ctx, topic, nil)).TopicProperties
	seen := found
	seen.AuthorizationRules = undated(seen.AuthorizationRules)
	alike(seen, wanted, "created")

	found.AutoDeleteOnIdle, wanted.AutoDeleteOnIdle = to("PT20M"), to("PT20M")
	found.DefaultMessageTimeToLive, wanted.DefaultMessageTimeToLive = to("P3D"), to("P3D")
	found.DuplicateDetectionHistoryTimeWindow, wanted.DuplicateDetectionHistoryTimeWindow = to("PT4M"), to("PT4M")
	found.EnableBatchedOperations, wanted.EnableBatchedOperations = to(true), to(true)
	found.MaxSizeInMegabytes, wanted.MaxSizeInMegabytes = to(int32(3072)), to(int32(3072))
	found.Status, wanted.Status = to(admin.EntityStatusActive), to(admin.EntityStatusActive)
	found.UserMetadata, wanted.UserMetadata = to("after"), to("after")
	must(client.UpdateTopic(b.ctx, topic, found, nil))
	seen = must(client.GetTopic(b.ctx, topic, nil)).TopicProperties
	seen.AuthorizationRules = undated(seen.AuthorizationRules)
	alike(seen, wanted, "updated")

	must(client.CreateSubscription(b.ctx, topic, "one", nil))
	equal(must(client.GetTopicRuntimeProperties(b.ctx, topic, nil)).SubscriptionCount, 1, "subscriptions")
	listed := 0
	for pager := client.NewListTopicsPager(&admin.ListTopicsOptions{MaxPageSize: 3}); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).Topics {
			if each.TopicName == topic {
				listed++
				equal(*each.UserMetadata, "after", "metadata in the list")
			}
		}
	}
	for pager := client.NewListTopicsRuntimePropertiesPager(nil); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).TopicRuntimeProperties {
			if each.TopicName == topic {
				listed++
				equal(each.SubscriptionCount, 1, "subscriptions in the list")
			}
		}
	}
	equal(listed, 2, "listed")

	_, err := client.CreateTopic(b.ctx, topic, nil)
	status(err, 409, "a topic of this name")
	found.RequiresDuplicateDetection = to(false)
	_, err = client.UpdateTopic(b.ctx, topic, found, nil)
	status(err, 400, "a property that cannot change")
	_, err = client.UpdateTopic(b.ctx, topic+"-none", admin.TopicProperties{}, nil)
	status(err, 404, "a topic that is not there")
	must(client.DeleteTopic(b.ctx, topic, nil))
	if found := must(client.GetTopic(b.ctx, topic, nil)); found != nil {
		fail("%v, expected no topic", found)
	}
	if found := must(client.GetTopicRuntimeProperties(b.ctx, topic, nil)); found != nil {
		fail("%v, expected no topic", found)
	}
	_, err = client.DeleteTopic(b.ctx, topic, nil)
	status(err, 404, "a topic that is gone")
}

// subscriptionAdministration does the same with subscriptions.
func subscriptionAdministration(b *bench) {
	client, topic, target := administration(), b.queue, b.queue+"-target"
	must(client.CreateTopic(b.ctx, topic, nil))
	must(client.CreateQueue(b.ctx, target, nil))
	wanted := admin.SubscriptionProperties{
		AutoDeleteOnIdle:                                to("PT10M"),
		DeadLetteringOnMessageExpiration:                to(true),
		DefaultMessageTimeToLive:                        to("P2D"),
		EnableBatchedOperations:                         to(false),
		EnableDeadLetteringOnFilterEvaluationExceptions: to(false),
		ForwardDeadLetteredMessagesTo:                   to(target),
		LockDuration:                                    to("PT30S"),
		MaxDeliveryCount:                                to(int32(4)),
		RequiresSession:                                 to(true),
		Status:                                          to(admin.EntityStatusActive), // the client sends none
		UserMetadata:                                    to("before"),
	}
	first := wanted
	first.DefaultRule = &admin.RuleProperties{Name: "first", Filter: &admin.SQLFilter{Expression: "color = 'red'"}}
	must(client.CreateSubscription(b.ctx, topic, "one", &admin.CreateSubscriptionOptions{Properties: &first}))
	var names []string
	for pager := client.NewListRulesPager(topic, "one", nil); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).Rules {
			names = append(names, each.Name)
		}
	}
	same(names, []string{"first"}, "rules of a new subscription")
	found := must(client.GetSubscription(b.ctx, topic, "one", nil)).SubscriptionProperties
	seen := found
	ends(&seen.ForwardDeadLetteredMessagesTo, target)
	alike(seen, wanted, "created")

	found.AutoDeleteOnIdle, wanted.AutoDeleteOnIdle = to("PT20M"), to("PT20M")
	found.DeadLetteringOnMessageExpiration, wanted.DeadLetteringOnMessageExpiration = to(false), to(false)
	found.DefaultMessageTimeToLive, wanted.DefaultMessageTimeToLive = to("P3D"), to("P3D")
	found.EnableBatchedOperations, wanted.EnableBatchedOperations = to(true), to(true)
	found.EnableDeadLetteringOnFilterEvaluationExceptions = to(true)
	wanted.EnableDeadLetteringOnFilterEvaluationExceptions = to(true)
	found.ForwardDeadLetteredMessagesTo, wanted.ForwardDeadLetteredMessagesTo = nil, nil
	found.LockDuration, wanted.LockDuration = to("PT40S"), to("PT40S")
	found.MaxDeliveryCount, wanted.MaxDeliveryCount = to(int32(6)), to(int32(6))
	found.UserMetadata, wanted.UserMetadata = to("after"), to("after")
	must(client.UpdateSubscription(b.ctx, topic, "one", found, nil))
	alike(must(client.GetSubscription(b.ctx, topic, "one", nil)).SubscriptionProperties, wanted, "updated")

	must(client.CreateSubscription(b.ctx, topic, "two", nil))
	two := must(client.GetSubscription(b.ctx, topic, "two", nil)).SubscriptionProperties
	two.ForwardTo = to(target)
	must(client.UpdateSubscription(b.ctx, topic, "two", two, nil))
	two = must(client.GetSubscription(b.ctx, topic, "two", nil)).SubscriptionProperties
	ends(&two.ForwardTo, target)
	sender := must(b.client.NewSender(topic, nil))
	red := map[string]any{"color": "red"}
	check(sender.SendMessage(b.ctx, &azservicebus.Message{Body: []byte("m"), SessionID: to("s"), ApplicationProperties: red}, nil))
	options := &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}
	forwarded := must(b.client.NewReceiverForQueue(target, options))
	equal(string(b.exactly(forwarded, 1)[0].Body), "m", "forwarded")
	check(forwarded.Close(b.ctx))
	equal(must(client.GetSubscriptionRuntimeProperties(b.ctx, topic, "one", nil)).ActiveMessageCount, 1, "messages")

	listed := 0
	for pager := client.NewListSubscriptionsPager(topic, &admin.ListSubscriptionsOptions{MaxPageSize: 1}); pager.More(); {
		listed += len(must(pager.NextPage(b.ctx)).Subscriptions)
	}
	for pager := client.NewListSubscriptionsRuntimePropertiesPager(topic, nil); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).SubscriptionRuntimeProperties {
			listed++
			equal(each.TopicName, topic, "topic in the list")
		}
	}
	equal(listed, 4, "listed")

	_, err := client.CreateSubscription(b.ctx, topic, "one", nil)
	status(err, 409, "a subscription of this name")
	_, err = client.CreateSubscription(b.ctx, topic+"-none", "one", nil)
	status(err, 404, "a topic that is not there")
	found.RequiresSession = to(false)
	_, err = client.UpdateSubscription(b.ctx, topic, "one", found, nil)
	status(err, 400, "a property that cannot change")
	found.RequiresSession, found.LockDuration = to(true), to("PT9M")
	_, err = client.UpdateSubscription(b.ctx, topic, "one", found, nil)
	status(err, 400, "a long lock")
	_, err = client.UpdateSubscription(b.ctx, topic, "none", admin.SubscriptionProperties{}, nil)
	status(err, 404, "a subscription that is not there")
	must(client.DeleteSubscription(b.ctx, topic, "one", nil))
	if found := must(client.GetSubscription(b.ctx, topic, "one", nil)); found != nil {
		fail("%v, expected no subscription", found)
	}
	if found := must(client.GetSubscriptionRuntimeProperties(b.ctx, topic, "one", nil)); found != nil {
		fail("%v, expected no subscription", found)
	}
	_, err = client.DeleteSubscription(b.ctx, topic, "one", nil)
	status(err, 404, "a subscription that is gone")
	must(client.DeleteTopic(b.ctx, topic, nil))
	must(client.DeleteQueue(b.ctx, target, nil))
}

// ruleAdministration does the same with rules: every filter with every property, and actions.
func ruleAdministration(b *bench) {
	client, topic := administration(), b.queue
	must(client.CreateTopic(b.ctx, topic, nil))
	must(client.CreateSubscription(b.ctx, topic, "one", nil))
	values := map[string]any{"@text": "red", "@number": 7.5, "@flag": true}
	rules := []admin.RuleProperties{
		{
			Name:   "sql",
			Filter: &admin.SQLFilter{Expression: "color = @text AND size < @number", Parameters: values},
			Action: &admin.SQLAction{Expression: "SET size = @number", Parameters: map[string]any{"@number": 8.5}},
		},
		{Name: "correlation", Filter: &admin.CorrelationFilter{
			ApplicationProperties: map[string]any{"size": 7.5, "flag": true, "color": "red"},
			ContentType:           to("text/plain"),
			CorrelationID:         to("correlation"),
			MessageID:             to("message"),
			ReplyTo:               to("reply"),
			ReplyToSessionID:      to("reply-session"),
			SessionID:             to("session"),
			Subject:               to("subject"),
			To:                    to("to"),
		}},
		{Name: "all", Filter: &admin.TrueFilter{}},
		{Name: "nothing", Filter: &admin.FalseFilter{}, Action: &admin.SQLAction{Expression: "REMOVE size"}},
	}
	for _, each := range rules {
		created := must(client.CreateRule(b.ctx, topic, "one", &admin.CreateRuleOptions{Name: &each.Name, Filter: each.Filter, Action: each.Action}))
		alikeRule(created.RuleProperties, each, "created")
		alikeRule(must(client.GetRule(b.ctx, topic, "one", each.Name, nil)).RuleProperties, each, "found")
	}
	for number, each := range rules {
		next := rules[(number+1)%len(rules)]
		each.Filter, each.Action = next.Filter, next.Action
		alikeRule(must(client.UpdateRule(b.ctx, topic, "one", each)).RuleProperties, each, "updated")
		alikeRule(must(client.GetRule(b.ctx, topic, "one", each.Name, nil)).RuleProperties, each, "found after its update")
	}
	var names []string
	for pager := client.NewListRulesPager(topic, "one", &admin.ListRulesOptions{MaxPageSize: 2}); pager.More(); {
		for _, each := range must(pager.NextPage(b.ctx)).Rules {
			names = append(names, each.Name)
		}
	}
	same(names, []string{"$Default", "sql", "correlation", "all", "nothing"}, "listed")

	_, err := client.CreateRule(b.ctx, topic, "one", &admin.CreateRuleOptions{Name: to("sql"), Filter: &admin.TrueFilter{}})
	status(err, 409, "a rule of this name")
	_, err = client.CreateRule(b.ctx, topic, "none", &admin.CreateRuleOptions{Name: to("sql"), Filter: &admin.TrueFilter{}})
	status(err, 404, "a subscription that is not there")
	wrong := &admin.SQLFilter{Expression: "color = = 'red'"}
	_, err = client.CreateRule(b.ctx, topic, "one", &admin.CreateRuleOptions{Name: to("wrong"), Filter: wrong})
	status(err, 400, "a wrong expression")
	_, err = client.UpdateRule(b.ctx, topic, "one", admin.RuleProperties{Name: "sql", Filter: wrong})
	status(err, 400, "an update with a wrong expression")
	alikeRule(must(client.GetRule(b.ctx, topic, "one", "all", nil)).RuleProperties, admin.RuleProperties{Name: "all", Filter: rules[3].Filter, Action: rules[3].Action}, "unchanged")
	_, err = client.UpdateRule(b.ctx, topic, "one", admin.RuleProperties{Name: "none", Filter: &admin.TrueFilter{}})
	status(err, 404, "a rule that is not there")
	must(client.DeleteRule(b.ctx, topic, "one", "sql", nil))
	if found := must(client.GetRule(b.ctx, topic, "one", "sql", nil)); found != nil {
		fail("%v, expected no rule", found)
	}
	_, err = client.DeleteRule(b.ctx, topic, "one", "sql", nil)
	status(err, 404, "a rule that is gone")
	must(client.DeleteTopic(b.ctx, topic, nil))
}

// alikeRule compares the types of the filters and actions, too: without them, all empty ones look the same.
func alikeRule(seen, expected admin.RuleProperties, what string) {
	alike(seen, expected, what)
	equal(fmt.Sprintf("%T %T", seen.Filter, seen.Action), fmt.Sprintf("%T %T", expected.Filter, expected.Action), what)
}
