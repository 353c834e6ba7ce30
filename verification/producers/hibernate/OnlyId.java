import java.sql.PreparedStatement;
import java.sql.SQLException;
import org.hibernate.dialect.Dialect;
import org.hibernate.engine.SessionImplementor;
import org.hibernate.id.IdentityGenerator;
import org.hibernate.id.PostInsertIdentityPersister;
import org.hibernate.id.insert.InsertGeneratedIdentifierDelegate;

// Reads the id alone after an INSERT. Hibernate's own strategy reads the whole row.
public class OnlyId extends IdentityGenerator {
    @Override
    public InsertGeneratedIdentifierDelegate getInsertGeneratedIdentifierDelegate(
            PostInsertIdentityPersister persister, Dialect dialect, boolean generatedKeys) {
        return new GetGeneratedKeysDelegate(persister, dialect) {
            @Override
            protected PreparedStatement prepare(String insert, SessionImplementor session) throws SQLException {
                return session.getBatcher().prepareStatement(insert, persister.getRootTableKeyColumnNames());
            }
        };
    }
}
