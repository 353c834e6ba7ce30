// A producer with Hibernate.

import java.io.Serializable;
import java.net.URI;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import javax.persistence.Column;
import javax.persistence.Entity;
import javax.persistence.GeneratedValue;
import javax.persistence.Id;
import javax.persistence.IdClass;
import javax.persistence.MappedSuperclass;
import javax.persistence.Table;
import javax.persistence.Temporal;
import javax.persistence.TemporalType;
import org.hibernate.JDBCException;
import org.hibernate.SQLQuery;
import org.hibernate.Session;
import org.hibernate.SessionFactory;
import org.hibernate.annotations.GenericGenerator;
import org.hibernate.annotations.Proxy;
import org.hibernate.cfg.Configuration;

// What a producer may set. No field has a default, so that callq's hold.
@MappedSuperclass
abstract class CallFields {
    @Id
    @GeneratedValue(generator = "id")
    @GenericGenerator(name = "id", strategy = "OnlyId") // the class, with its package
    Long id;
    String queue;
    String task;
    String key;
    @Column(name = "call_data") String callData;
    Long cost;
    Short priority;
    @Column(name = "run_at") @Temporal(TemporalType.TIMESTAMP) Date runAt;
    @Column(name = "expires_at") @Temporal(TemporalType.TIMESTAMP) Date expiresAt;
    @Column(name = "unique_key") String uniqueKey;
    @Column(name = "max_attempts") Integer maxAttempts;
}

@Entity
@Table(name = "call_queue")
@Proxy(lazy = false)
class Call extends CallFields {}

// A call to read, with what became of it.
@Entity
@Table(name = "call_queue")
@Proxy(lazy = false)
class MadeCall extends CallFields {
    String status;
    int attempts;
}

// One of its attempts.
@Entity
@Table(name = "call_attempts")
@Proxy(lazy = false)
@IdClass(Attempt.Key.class)
class Attempt {
    @Id @Column(name = "call_id") long callId;
    @Id int attempt;
    String result;

    static class Key implements Serializable {
        long callId;
        int attempt;

        @Override
        public boolean equals(Object other) {
            return other instanceof Key key && key.callId == callId && key.attempt == attempt;
        }

        @Override
        public int hashCode() {
            return Long.hashCode(callId) + attempt;
        }
    }
}

public class Producer {
    static final String api = System.getenv("API_URL");

    static String data(String path) {
        return "{\"method\": \"POST\", \"url\": \"" + api + path + "\", \"json\": {\"order\": 4711}}";
    }

    static Call call(String path) {
        Call call = new Call();
        call.queue = "payments";
        call.key = "acct_42";
        call.callData = data(path);
        return call;
    }

    static SessionFactory factory() {
        URI url = URI.create(System.getenv("DATABASE_URL"));
        String[] login = url.getUserInfo().split(":");
        Configuration configuration = new Configuration()
                .setProperty("hibernate.connection.driver_class", "org.postgresql.Driver")
                .setProperty("hibernate.connection.username", login[0])
                .setProperty("hibernate.connection.password", login[1])
                .setProperty("hibernate.dialect", "org.hibernate.dialect.PostgreSQLDialect");
        String address = url.getHost() + ":" + url.getPort() + url.getPath();
        configuration.setProperty("hibernate.connection.url", "jdbc:postgresql://" + address + "?stringtype=unspecified");
        for (Class<?> type : List.of(Call.class, MadeCall.class, Attempt.class)) {
            configuration.addAnnotatedClass(type);
        }
        return configuration.buildSessionFactory();
    }

    public static void main(String[] args) {
        Session session = factory().openSession();
        System.out.println(step(session, args));
        session.close();
        System.exit(0);
    }

    static String step(Session session, String[] args) {
        switch (args[0]) {
        case "version":
            return "{\"version\": \"" + Session.class.getPackage().getImplementationVersion() + "\"}";

        case "create": {
            session.beginTransaction();
            Call made = new Call();
            made.queue = "payments";
            made.key = "acct_42";
            made.uniqueKey = "order-4711";
            made.callData = "{\"method\": \"POST\", \"url\": \"" + api + "/create\", \"json\": {\"order\": 4711}}";
            session.save(made);
            session.getTransaction().commit();
            return "{\"id\": " + made.id + "}";
        }

        case "bulk": {
            List<Object> ids = new ArrayList<>();
            session.beginTransaction();
            for (int i = 0; i < 1000; i++) {
                ids.add(session.save(call("/bulk/" + i)));
            }
            session.getTransaction().commit();
            return "{\"ids\": " + ids + "}";
        }

        case "transaction":
            session.beginTransaction();
            session.save(call("/committed"));
            session.getTransaction().commit();
            session.beginTransaction();
            session.save(call("/rolled-back"));
            session.getTransaction().rollback(); // not paid
            return "{}";

        // A duplicate would end the transaction. SQL inserts instead.
        case "duplicates": {
            String[] keys = {"dup-1", "dup-1", "dup-2"};
            session.beginTransaction();
            for (int i = 0; i < keys.length; i++) {
                session.createSQLQuery("INSERT INTO call_queue (queue, unique_key, call_data)"
                        + " VALUES ('payments', :key, :data) ON CONFLICT DO NOTHING")
                        .setString("key", keys[i]).setString("data", data("/duplicates/" + (i + 1))).executeUpdate();
            }
            session.getTransaction().commit();
            return "{}";
        }

        case "upsert": {
            List<Object> ids = new ArrayList<>();
            session.beginTransaction();
            for (String path : List.of("/upsert/1", "/upsert/2")) {
                SQLQuery query = session.createSQLQuery(
                        "SELECT id FROM enqueue_call('http', :data, queue => 'payments', unique_key => :key)");
                ids.add(query.setString("data", data(path)).setString("key", "up-1").uniqueResult());
            }
            session.getTransaction().commit();
            return "{\"ids\": " + ids + "}";
        }

        case "read": {
            MadeCall made = (MadeCall) session.get(MadeCall.class, Long.valueOf(args[1]));
            Attempt last = (Attempt) session.createQuery("from Attempt where callId = :id order by attempt desc")
                    .setLong("id", made.id).setMaxResults(1).uniqueResult();
            return "{\"status\": \"" + made.status + "\", \"result\": " + last.result + "}";
        }

        case "stale": {
            MadeCall made = (MadeCall) session.get(MadeCall.class, Long.valueOf(args[1]));
            System.out.println("{\"loaded\": " + made.id + "}");
            new java.util.Scanner(System.in).nextLine();
            session.beginTransaction();
            made.priority = 9;
            try {
                session.getTransaction().commit();
            } catch (JDBCException e) {
                SQLException cause = e.getSQLException();
                while (cause.getNextException() != null) { // a batch's exception names no SQLSTATE of its own
                    cause = cause.getNextException();
                }
                return "{\"sqlstate\": \"" + cause.getSQLState() + "\"}";
            }
            return "{\"sqlstate\": \"ok\"}";
        }

        case "diff":
            return "{\"skip\": \"hbm2ddl.auto is not set: callq migrates its tables itself\"}";
        }
        throw new IllegalArgumentException("no such step: " + args[0]);
    }
}
