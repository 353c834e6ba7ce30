export default {
  dialect: 'postgresql',
  schema: './schema.mjs',
  dbCredentials: { url: process.env.DATABASE_URL },
  tablesFilter: ['!call_queue', '!call_attempts'], // callq migrates its tables itself
}
