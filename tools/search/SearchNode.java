import java.util.List;
import java.util.Map;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** An OpenSearch node in the foreground, with the settings that are given as KEY=VALUE. */
public class SearchNode extends Node {
    SearchNode(Settings settings) {
        super(InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "node"),
            List.of(Netty4Plugin.class, CommonAnalysisPlugin.class), false);
    }

    public static void main(String[] given) throws Exception {
        Settings.Builder settings = Settings.builder().put("http.type", "netty4").put("transport.type", "netty4");
        for (String each : given) {
            String[] pair = each.split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        new SearchNode(settings.build()).start();
        Thread.currentThread().join();
    }
}
