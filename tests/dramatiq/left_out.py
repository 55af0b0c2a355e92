"""Which of Dramatiq's tests are left out, and why: whole files, or tests by name."""

REDIS_KEYS = "it reads and writes the keys of Redis"
REDIS_OPTIONS = "it is about how RedisBroker is made"
RABBITMQ_CHANNEL = "it works on pika's connections and channels"
RABBITMQ_OPTIONS = "it is about how RabbitmqBroker is made"
RABBITMQ_DECLARING = "it breaks RabbitmqBroker's own declaring of queues"
NO_DELAY_QUEUE = "there are no delay queues: a worker never gets a message before it is due"
STUB_LETTERS = "it puts an object into StubBroker's list of dead letters"

LEFT_OUT: dict[str, str | dict[str, str]] = {
    "test_broker.py": {
        "test_broker_uses_rabbitmq_if_not_set": "it is about Dramatiq's default broker",
        "test_can_instantiate_brokers_without_middleware": RABBITMQ_OPTIONS,
    },
    "test_cli.py": "it starts the command line on a RedisBroker of its own",
    "test_pidfile.py": "it starts the command line on a StubBroker of its own",
    "test_rabbitmq.py": {
        "test_rabbitmq_broker_raises_an_error_if_given_invalid_parameter_combinations": RABBITMQ_OPTIONS,
        "test_rabbitmq_broker_can_be_passed_a_semicolon_separated_list_of_uris": RABBITMQ_OPTIONS,
        "test_rabbitmq_broker_can_be_passed_a_list_of_uri_for_failover": RABBITMQ_OPTIONS,
        "test_rabbitmq_broker_can_be_passed_a_list_of_parameters_for_failover": RABBITMQ_OPTIONS,
        "test_rabbitmq_broker_connections_are_lazy": RABBITMQ_CHANNEL,
        "test_rabbitmq_broker_stops_retrying_declaring_queues_when_max_attempts_reached": RABBITMQ_DECLARING,
        "test_rabbitmq_broker_reconnects_after_enqueue_failure": RABBITMQ_CHANNEL,
        "test_rabbitmq_workers_handle_rabbit_failures_gracefully": "it stops a RabbitMQ server",
        "test_rabbitmq_connections_can_be_deleted_multiple_times": RABBITMQ_CHANNEL,
        "test_rabbitmq_channels_can_be_deleted_multiple_times": RABBITMQ_CHANNEL,
        "test_ignore_scary_logs_filter_ignores_logs": RABBITMQ_CHANNEL,
        "test_rabbitmq_close_only_registers_ignore_filter_once": RABBITMQ_CHANNEL,
        "test_rabbitmq_broker_retries_declaring_queues_when_connection_related_errors_occur": RABBITMQ_DECLARING,
        "test_rabbitmq_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears": RABBITMQ_CHANNEL,
        "test_rabbitmq_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears": RABBITMQ_CHANNEL,
    },
    "test_redis.py": {
        "test_redis_unacked_messages_can_be_requeued": REDIS_KEYS,
        "test_redis_messages_can_be_dead_lettered": REDIS_KEYS,
        "test_redis_dead_lettered_messages_are_cleaned_up": REDIS_KEYS,
        "test_redis_messages_belonging_to_missing_actors_are_rejected": REDIS_KEYS,
        "test_redis_requeues_unhandled_messages_on_shutdown": REDIS_KEYS,
        "test_redis_requeues_unhandled_delay_messages_on_shutdown": REDIS_KEYS,
        "test_redis_broker_can_connect_via_url": REDIS_OPTIONS,
        "test_redis_broker_can_connect_via_client": REDIS_OPTIONS,
        "test_redis_consumer_ack_can_retry_on_connection_error": REDIS_KEYS,
        "test_redis_consumer_nack_can_retry_on_connection_error": REDIS_KEYS,
        "test_redis_join_race_condition": REDIS_KEYS,
    },
    "test_results.py": {"test_messages_without_actor_not_crashing_lookup_options": "its results are in Redis"},
    "test_stub_broker.py": {"test_stub_broker_can_be_flushed": STUB_LETTERS},
    "test_types.py": "it is for type checkers",
    "test_watch.py": "it starts the command line on a StubBroker of its own",
}
